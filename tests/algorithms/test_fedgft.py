"""FedGFT: hand-worked rates and prices, and FedAvg as its special case."""

from __future__ import annotations

import pytest
import torch
from tests.contract import TASK, task_of

import ffalm
from ffalm.algorithms import RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally

#: By (prediction, label, group), of two clients: group 0 has 10 rows, of which 4 are predicted favourable (2 of its 4
#: favourable ones), group 1 30 rows, of which 21 are (9 of 10).
CONFUSION = torch.tensor([[[[2, 8], [1, 0]], [[1, 2], [0, 4]]], [[[2, 0], [1, 1]], [[1, 10], [2, 5]]]])


def after(algorithm: ffalm.FedGFT) -> State:
    counts = CONFUSION.sum(1)
    tally = Tally(CONFUSION, torch.zeros(counts.shape, dtype=torch.float64))
    return algorithm.update(
        algorithm.start(TASK, counts), RoundReport(1, counts, torch.tensor([True, True]), tally, TASK)
    )[1]


def test_the_worked_prices_of_demographic_parity() -> None:
    """r = (0.4, 0.7), F = -0.3, c = 2 * 0.5 * (-0.3, 0.3); rows cost -0.3 * 40/10 and 0.3 * 40/30."""
    state = after(ffalm.FedGFT(penalty=0.5))
    assert state["rates"].tolist() == [pytest.approx([0.4, 0.7])]
    favourable, correct, loss = state["prices"].tolist()
    assert favourable == [pytest.approx([-1.2, 0.4])] * 2
    assert correct == loss == [[0, 0], [0, 0]]


def test_equal_opportunity_prices_favourable_rows_alone() -> None:
    """r = (0.5, 0.9), c = (-0.8, 0.8), shares of rows 4/40 and 10/40."""
    state = after(ffalm.FedGFT("eo", penalty=1.0))
    assert state["rates"].tolist() == [pytest.approx([0.5, 0.9])]
    assert state["prices"][0].tolist() == [[0, 0], pytest.approx([-8.0, 3.2])]


def test_three_groups_are_compared_in_pairs() -> None:
    """Rates (0, 0.5, 1): c_g = 2 sum_h (r_g - r_h) = (-3, 0, 3), each group a third of the rows."""
    task = task_of(groups=3)
    confusion = torch.tensor([[[[2, 1, 0], [0, 0, 0]], [[0, 1, 2], [0, 0, 0]]]])
    tally = Tally(confusion, torch.zeros(1, 2, 3, dtype=torch.float64))
    told = RoundReport(1, confusion.sum(1), torch.tensor([True]), tally, task)
    algorithm = ffalm.FedGFT(penalty=1.0)
    state = algorithm.update(algorithm.start(task, told.counts), told)[1]
    assert state["prices"][0, 0].tolist() == pytest.approx([-9, 0, 9])


def test_nothing_has_a_price_before_a_gap_is_known_nor_at_penalty_0() -> None:
    assert bool((ffalm.FedGFT().start(TASK, CONFUSION.sum(1))["prices"] == 0).all())
    assert bool((after(ffalm.FedGFT(penalty=0.0))["prices"] == 0).all())


def test_an_unknown_constraint_is_refused() -> None:
    with pytest.raises(UserError, match="constraint of FedGFT"):
        ffalm.FedGFT("parity")
