"""Arithmetic of model-sized vectors."""

from __future__ import annotations

import torch

from ffalm.algorithms import ModelVector


def vector(*values: list[float]) -> ModelVector:
    return ModelVector([torch.tensor(value, dtype=torch.float64) for value in values])


def plain(found: ModelVector) -> list[object]:
    return [value.tolist() for value in found.tensors]


def test_operations_are_elementwise() -> None:
    a, b = vector([1.0, 2.0], [3.0]), vector([4.0, 5.0], [6.0])
    assert plain(a + b) == [[5.0, 7.0], [9.0]]
    assert plain(2 * (b - a) / 3.0) == [[2.0, 2.0], [2.0]]
    assert plain(-(a * b)) == [[-4.0, -10.0], [-18.0]]
    assert plain((a * a).sqrt()) == plain(a)
    assert plain((a - b).sign()) == [[-1.0, -1.0], [-1.0]]
    assert plain(a + 1.0) == [[2.0, 3.0], [4.0]]


def test_a_tensor_is_one_number_a_client_on_the_leading_axis() -> None:
    blocks = vector([[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]])  # type: ignore[list-item]
    assert plain(blocks * torch.tensor([10, 100])) == [[[10.0, 20.0], [300.0, 400.0]], [[50.0], [600.0]]]


def test_some_clients_are_views_that_can_be_overwritten() -> None:
    blocks = vector([[1.0], [2.0], [3.0]])  # type: ignore[list-item]
    blocks[slice(0, 2)].copy_(vector([[7.0], [8.0]]))  # type: ignore[list-item]
    assert plain(blocks) == [[[7.0], [8.0], [3.0]]]
    blocks.add_(blocks.zeros() + 1.0)
    assert plain(blocks) == [[[8.0], [9.0], [4.0]]]
