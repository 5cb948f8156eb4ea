"""FedMinMax: hand-worked weights of groups, and FedAvg as its special case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.contract import TASK, task_of

import ffalm
from ffalm.algorithms import RoundReport, State
from ffalm.data.types import Task
from ffalm.fairness import Tally

#: Two clients of 10 rows; 15 rows of group 0 and 5 of group 1.
COUNTS = torch.tensor([[[4, 1], [4, 1]], [[3, 1], [4, 2]]])
LOSSES = torch.tensor([[[1.0, 1.0], [2.0, 0.5]], [[2.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)


def after(algorithm: ffalm.FedMinMax, task: Task = TASK) -> tuple[torch.Tensor, State]:
    part = torch.tensor([True, True])
    tally = Tally(torch.stack([COUNTS, torch.zeros_like(COUNTS)], 1), LOSSES)
    return algorithm.update(algorithm.start(task, COUNTS), RoundReport(1, COUNTS, part, tally, task))


def test_the_worked_round() -> None:
    """r = (6/15, 3.5/5) = (0.4, 0.7); mu + 0.5 r = (0.95, 0.6), projected (0.675, 0.325); weights mu / rho."""
    weights, state = after(ffalm.FedMinMax(step=0.5))
    assert state["group_weights"].tolist() == pytest.approx([0.675, 0.325])
    assert state["row_weights"].tolist() == [pytest.approx([0.9, 1.3])] * 2
    assert weights.tolist() == [0.5, 0.5]


def test_a_large_step_leaves_the_worst_group_alone() -> None:
    state = after(ffalm.FedMinMax(step=100.0))[1]
    assert state["group_weights"].tolist() == [0, 1]
    assert state["row_weights"].tolist() == [[0, 4], [0, 4]]


def test_step_0_is_fedavg() -> None:
    assert after(ffalm.FedMinMax(step=0.0))[1]["row_weights"].tolist() == [pytest.approx([1, 1])] * 2


def test_a_group_without_rows_gets_no_weight() -> None:
    algorithm, task = ffalm.FedMinMax(step=0.5), task_of(groups=3)
    counts = torch.cat([COUNTS, torch.zeros(2, 2, 1, dtype=torch.int64)], -1)
    losses = torch.cat([LOSSES, torch.zeros(2, 2, 1, dtype=torch.float64)], -1)
    tally = Tally(torch.stack([counts, torch.zeros_like(counts)], 1), losses)
    told = RoundReport(1, counts, torch.tensor([True, True]), tally, task)
    state = algorithm.update(algorithm.start(task, counts), told)[1]
    assert state["group_weights"].tolist() == pytest.approx([0.675, 0.325, 0])


def test_rows_of_a_group_that_is_not_compared_weigh_1_and_change_no_other_weight() -> None:
    algorithm, task = ffalm.FedMinMax(step=0.5), replace(task_of(groups=3), excluded=1)
    counts = torch.cat([COUNTS, torch.tensor([[[1], [2]], [[3], [4]]])], -1)
    losses = torch.cat([LOSSES, torch.ones(2, 2, 1, dtype=torch.float64)], -1)
    tally = Tally(torch.stack([counts, torch.zeros_like(counts)], 1), losses)
    told = RoundReport(1, counts, torch.tensor([True, True]), tally, task)
    state = algorithm.update(algorithm.start(task, counts), told)[1]
    assert state["group_weights"].tolist() == pytest.approx([0.675, 0.325])
    assert state["row_weights"].tolist() == [pytest.approx([0.9, 1.3, 1.0])] * 2
