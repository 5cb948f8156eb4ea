"""AFL: hand-worked weights of clients, and FedAvg as its special case."""

from __future__ import annotations

import pytest
import torch
from tests.contract import TASK, report_of

import ffalm
from ffalm.algorithms import RoundReport
from ffalm.fairness import Tally


def report(part: list[bool]) -> RoundReport:
    """Three clients of 2, 3 and 5 rows with mean losses 0.5, 1.0 and 0.2."""
    rows, there = torch.tensor([2, 3, 5]), torch.tensor(part)
    confusion = torch.zeros(3, 2, 2, 2, dtype=torch.int64)
    confusion[:, 0, 0, 0] = rows * there
    loss = torch.zeros(3, 2, 2, dtype=torch.float64)
    loss[:, 0, 0] = torch.tensor([1.0, 3.0, 1.0]) * there
    return report_of(1, rows, there, Tally(confusion, loss))


def test_the_worked_round() -> None:
    """lambda + 0.3 L = (0.35, 0.6, 0.56), projected by taking off 0.17. The models count as lambda was sent."""
    algorithm, told = ffalm.AFL(step=0.3), report([True, True, True])
    weights, state = algorithm.update(algorithm.start(TASK, told.counts), told)
    assert weights.tolist() == pytest.approx([0.2, 0.3, 0.5])
    assert state["client_weights"].tolist() == pytest.approx([0.18, 0.43, 0.39])
    assert algorithm.update(state, told)[0].tolist() == pytest.approx([0.18, 0.43, 0.39])


def test_a_client_that_sits_a_round_out_moves_by_nothing_and_counts_for_nothing() -> None:
    """lambda + 0.3 L = (0.35, 0.3, 0.56), projected by taking off 0.07."""
    algorithm, told = ffalm.AFL(step=0.3), report([True, False, True])
    weights, state = algorithm.update(algorithm.start(TASK, told.counts), told)
    assert weights.tolist() == pytest.approx([2 / 7, 0, 5 / 7])
    assert state["client_weights"].tolist() == pytest.approx([0.28, 0.23, 0.49])


def test_step_0_is_fedavg() -> None:
    algorithm, told = ffalm.AFL(step=0.0), report([True, True, True])
    weights, state = algorithm.update(algorithm.start(TASK, told.counts), told)
    assert torch.equal(weights, told.shares())
    assert torch.equal(state["client_weights"], told.shares())


def test_where_all_who_take_part_have_weight_0_they_count_by_size() -> None:
    told = report([True, False, True])
    weights, _ = ffalm.AFL().update({"client_weights": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)}, told)
    assert weights.tolist() == pytest.approx([2 / 7, 0, 5 / 7])
