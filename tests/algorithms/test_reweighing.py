"""Reweighing: hand-worked weights, over which label and group are independent."""

from __future__ import annotations

import pytest
import torch
from tests.contract import TASK, task_of

import ffalm
from ffalm.data.types import Task
from ffalm.errors import UserError

#: Together (30, 10; 20, 40) by (label; group): P(y) = (0.4, 0.6), P(z) = (0.5, 0.5).
COUNTS = torch.tensor([[[10, 10], [0, 0]], [[20, 0], [20, 40]]])
WEIGHTS = [pytest.approx([0.2 / 0.3, 0.2 / 0.1]), pytest.approx([0.3 / 0.2, 0.3 / 0.4])]


def test_the_worked_weights() -> None:
    assert ffalm.Reweighing().start(TASK, COUNTS)["row_weights"].tolist() == WEIGHTS
    assert ffalm.Reweighing().own_state(TASK, COUNTS[0]) == {}


def test_local_weights_are_by_the_clients_own_rows_and_1_for_cells_it_lacks() -> None:
    algorithm = ffalm.Reweighing("local")
    assert algorithm.start(TASK, COUNTS) == {}
    assert algorithm.own_state(TASK, COUNTS[0])["row_weights"].tolist() == [[1, 1], [1, 1]]
    found = algorithm.own_state(TASK, COUNTS[1])["row_weights"].tolist()
    assert found == [pytest.approx([20 * 40 / 80 / 20, 1]), pytest.approx([60 * 40 / 80 / 20, 60 * 40 / 80 / 40])]


def test_weighted_rows_are_as_many_and_have_the_same_share_of_labels_in_each_group() -> None:
    counts = torch.randint(1, 50, (3, 4, 3, 5), generator=torch.Generator().manual_seed(0))
    weighted = ffalm.Reweighing().start(task_of(3, 5), counts)["row_weights"] * counts.sum(-3)
    shares = weighted / weighted.sum(-2, keepdim=True)
    torch.testing.assert_close(shares, shares[..., :1].expand_as(shares))
    torch.testing.assert_close(weighted.sum((-1, -2)), counts.sum((-1, -2, -3)).double())


def test_groups_that_are_not_compared_keep_weight_1() -> None:
    task = Task("people", group_names=("a", "b", "unknown"), excluded=1)
    counts = torch.cat([COUNTS, torch.full((2, 2, 1), 7)], -1)
    found = ffalm.Reweighing().start(task, counts)["row_weights"]
    assert found[:, :2].tolist() == WEIGHTS and found[:, 2].tolist() == [1, 1]


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(UserError, match="'scope' of Reweighing"):
        ffalm.Reweighing("site")  # type: ignore[arg-type]
