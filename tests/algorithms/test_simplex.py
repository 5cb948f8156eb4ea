"""The projection onto the simplex, and weights that sum to 1."""

from __future__ import annotations

import math

import pytest
import torch

from ffalm.algorithms.simplex import normalised, onto_simplex, recounted_weights


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.6, 0.8], [0.4, 0.6]),
        ([0.1, 2.0, 0.0], [0.0, 1.0, 0.0]),
        ([-1.0, -1.2], [0.6, 0.4]),
        ([0.5, -math.inf, 0.9], [0.3, 0.0, 0.7]),
    ],
)
def test_the_nearest_point(values: list[float], expected: list[float]) -> None:
    assert onto_simplex(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(expected)


def test_each_line_of_many_is_projected_alone() -> None:
    lines = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = onto_simplex(lines)
    assert found.sum(-1).tolist() == pytest.approx([1.0] * 5)
    assert bool((found >= 0).all())
    torch.testing.assert_close(found[3], onto_simplex(lines[3]))


def test_weights_of_0_become_those_by_size() -> None:
    rows = torch.tensor([1.0, 3.0])
    assert normalised(torch.zeros(2), rows).tolist() == [0.25, 0.75]
    assert normalised(torch.tensor([2.0, 2.0]), rows).tolist() == [0.5, 0.5]


def test_where_all_weight_was_with_a_client_that_is_gone_the_sizes_of_those_that_stayed_decide() -> None:
    """The late client gets its 20 of 60 rows; the others share the rest as 10 to 30."""
    weights, rows = torch.tensor([0.0, 0.0, 1.0, 0.0]).double(), torch.tensor([10.0, 30.0, 0.0, 20.0]).double()
    found = recounted_weights(weights, rows, torch.tensor([False, False, False, True]))
    assert found.tolist() == pytest.approx([1 / 6, 1 / 2, 0, 1 / 3])
