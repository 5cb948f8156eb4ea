"""Constraints on losses, and the clamped pulls of several groups, on hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.contract import task_of
from torch import Tensor

from ffalm.algorithms import Rows
from ffalm.algorithms.constraints import LossNearMean, LossParity, group_shares, nonnegative_pulls

TASK = task_of(groups=3)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_loss_parity_has_a_violation_for_each_group_but_the_first_and_nearness_to_the_mean_one_for_each() -> None:
    assert LossParity().size(TASK) == 2
    assert LossNearMean().size(TASK) == 3
    assert LossParity().size(replace(TASK, excluded=1)) == 1


def test_shares_of_groups_are_of_the_rows_that_count() -> None:
    groups = torch.tensor([0, 0, 1, 2, 2, 1])
    mask = torch.tensor([True, True, True, True, False, False])
    rows = Rows(torch.zeros(6, dtype=torch.long), groups, mask, TASK)
    assert group_shares(rows, torch.float64).tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("pulls", "shares", "expected"),
    [
        ((0.2, 0.1), (0.5, 0.3, 0.2), (0.2, 0.1)),  # 1/n - 0.2/n_1 and 1/n - 0.1/n_2 are positive
        ((0.6, 0.1), (0.5, 0.3, 0.2), (0.3, 0.1)),  # at most n_1/n
        ((-0.2, -0.1), (0.5, 0.3, 0.2), (-0.2, -0.1)),  # 1/n - 0.3/n_0 is positive
        ((-0.6, -0.2), (0.5, 0.3, 0.2), (-0.375, -0.125)),  # their sum is at least -n_0/n
        ((0.6, -0.9), (0.5, 0.3, 0.2), (0.3, -0.8)),  # a positive pull makes room: 0.3 - 0.8 = -n_0/n
        ((0.6, -0.3), (0.8, 0.0, 0.2), (0.0, -0.3)),  # a group without rows is not pulled
        ((-0.6, -0.3), (0.8, 0.0, 0.2), (0.0, -0.3)),
    ],
)
def test_pulls_of_several_groups_are_clamped_as_far_as_no_row_has_a_negative_weight(
    pulls: tuple[float, ...], shares: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    torch.testing.assert_close(nonnegative_pulls(numbers(*pulls), numbers(*shares)), numbers(*expected))
