"""q-FFL: q-FedAvg's step by hand. Against the published pseudo-code: `test_optimizing_against_numpy.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract import everyone, vector

from ffalm.algorithms import QFFL, RoundReport
from ffalm.errors import UserError
from ffalm.fairness import Tally


def told(losses: list[float], changes: list[float], sizes: list[int], lr: float = 0.5) -> RoundReport:
    """Clients with these mean losses of the received model, whose models of one number moved by these changes."""
    rows = torch.tensor(sizes)
    confusion = torch.zeros(len(sizes), 2, 2, 2, dtype=torch.int64)
    confusion[:, 0, 0, 0] = rows
    loss = torch.zeros(len(sizes), 2, 2, dtype=torch.float64)
    loss[:, 0, 0] = torch.tensor(losses) * rows
    moved = torch.tensor(changes, dtype=torch.float64)
    products = torch.outer(moved, moved).view(1, len(sizes), 1, len(sizes))
    return replace(everyone(*sizes), tally=Tally(confusion, loss), products=products, lr=lr)


def stepped(algorithm: QFFL, report: RoundReport, changes: list[float]) -> float:
    """Where a model at 1 goes."""
    weights, _ = algorithm.update({}, report)
    mean = float(weights @ (1 + torch.tensor(changes, dtype=torch.float64)))
    return algorithm.server_step(vector(1.0), vector(mean), {}, {}, report)[0].tensors[0].item()


def test_one_round_by_hand() -> None:
    """q = 1, lr 0.5 so L = 2, F = (1, 2), changes (-0.5, +0.25), equal clients:

    Delta = (1 * 2 * 0.5, 2 * 2 * -0.25) = (1, -1),  h = (1 * 1 + 2 * 1, 1 * 0.25 + 2 * 2) = (3, 4.25),  w - 0 / 7.25

    With F = (2, 1): Delta = (2, -0.5), h = (1 + 4, 0.25 + 2) = (5, 2.25), w - 1.5 / 7.25.
    """
    changes = [-0.5, 0.25]
    assert stepped(QFFL(), told([1, 2], changes, [10, 10]), changes) == pytest.approx(1.0)
    assert stepped(QFFL(), told([2, 1], changes, [10, 10]), changes) == pytest.approx(1 - 1.5 / 7.25)


def test_one_round_with_q_3_by_hand() -> None:
    """F = (3, 1): Delta = (27 * 1, -0.5), h = (3 * 9 * 1 + 2 * 27, 3 * 0.25 + 2) = (81, 2.75), w - 26.5 / 83.75."""
    changes = [-0.5, 0.25]
    assert stepped(QFFL(q=3.0), told([3, 1], changes, [10, 10]), changes) == pytest.approx(1 - 26.5 / 83.75)


def test_size_weights_enter_numerator_and_denominator() -> None:
    """p = (3/4, 1/4): sum p Delta = 3/4 * 2 - 1/4 * 0.5 = 1.375, sum p h = 3/4 * 5 + 1/4 * 2.25 = 4.3125."""
    changes = [-0.5, 0.25]
    report = told([2, 1], changes, [30, 10])
    assert stepped(QFFL(), report, changes) == pytest.approx(1 - 1.375 / 4.3125)
    assert stepped(QFFL(client_weights="uniform"), report, changes) == pytest.approx(1 - 1.5 / 7.25)


def test_a_larger_q_gives_more_weight_to_the_client_that_is_worse_off() -> None:
    report = told([2, 1], [-0.5, 0.25], [10, 10])
    shares = [float(QFFL(q=q).update({}, report)[0][0]) for q in (0.0, 1.0, 4.0)]
    assert shares == pytest.approx([1 / 2, 2 / 3, 16 / 17])


@pytest.mark.parametrize(("weights", "expected"), [("size", 0.6875), ("uniform", 0.875)])
def test_q_0_is_the_mean_of_the_models(weights: Any, expected: float) -> None:
    changes = [-0.5, 0.25]
    found = stepped(QFFL(q=0.0, client_weights=weights), told([2, 1], changes, [30, 10]), changes)
    assert found == pytest.approx(expected)


def test_a_larger_lipschitz_constant_shortens_the_step() -> None:
    changes = [-0.5, 0.25]
    report = told([2, 1], changes, [10, 10])
    assert stepped(QFFL(lipschitz=2.0), report, changes) == stepped(QFFL(), report, changes)
    moves = [abs(stepped(QFFL(lipschitz=value), report, changes) - 1) for value in (1.0, 2.0, 50.0)]
    assert moves == sorted(moves, reverse=True)


def test_a_client_without_loss_a_round_without_learning_rate_and_withheld_cells_stay_finite() -> None:
    changes = [0.0, 0.0]
    assert stepped(QFFL(q=0.5), told([0, 1], changes, [10, 10], lr=0.0), changes) == pytest.approx(1.0)
    report = told([3, 1, 9], [0.0] * 3, [10] * 3)
    assert report.tally is not None
    withheld = Tally(report.tally.confusion.clone(), report.tally.loss.clone())
    withheld.confusion[2], withheld.loss[2] = 0, 0
    weights, _ = QFFL().update({}, replace(report, tally=withheld))
    assert weights.tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])  # the mean of the others' losses is 2


@pytest.mark.parametrize(("settings", "why"), [
    ({"q": -1}, "'q' of q-FFL must be 0 or more"),
    ({"lipschitz": 0}, "'lipschitz' of q-FFL must be above 0"),
    ({"client_weights": "rows"}, "'client_weights' of q-FFL must be one of size, uniform"),
])  # fmt: skip
def test_settings_are_checked(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        QFFL(**settings)
