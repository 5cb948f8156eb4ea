"""What is summed in a round, and what the sums say: worked out by hand on two sites."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import ffalm
from ffalm.data.types import Task
from ffalm.engines import Snapshot
from ffalm.engines.server import ClientUpdate, own_step
from ffalm.fairness import Tally
from ffalm.federate.secure.fixed_point import Words, added
from ffalm.federate.secure.payload import (
    read_tally,
    round_layout,
    round_numbers,
    round_sum,
    score_layout,
    score_numbers,
)
from ffalm.federate.secure.secure_settings import Secure

TASK = Task("loans", "loan", "sex", ("no", "yes"), ("female", "male"), favourable=1)
SENT = Snapshot(
    3,
    {"weight": torch.tensor([1.0, -2.0]), "batches": torch.tensor(100)},
    {"dual": torch.tensor(0.5, dtype=torch.float64)},
)


def tally(first: float, second: float) -> Tally:
    """One row of each group, both of the label 0 and predicted 1, with these losses."""
    confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
    confusion[1, 0] = 1
    return Tally(confusion, torch.tensor([[first, second], [0.0, 0.0]], dtype=torch.float64))


def reply(weight: list[float], batches: int, loss: float) -> ClientUpdate:
    return ClientUpdate({"weight": torch.tensor(weight), "batches": torch.tensor(batches)}, tally(0, 0), loss, 0.25)


def words(answer: ClientUpdate, dual: float, rows: int) -> Words:
    moved = {"dual": torch.tensor(dual, dtype=torch.float64)}
    layout = round_layout(SENT, {}, TASK, Secure(), 2)
    return layout.words(round_numbers(SENT, answer, moved, tally(0.5, 1.5), rows), rows / 30)


def test_models_and_duals_are_averaged_by_rows_and_losses_by_sites() -> None:
    layout = round_layout(SENT, {}, TASK, Secure(), 2)
    total = added(words(reply([2.0, -2.0], 110, 0.6), 1.0, 30), words(reply([1.0, 2.0], 150, 0.2), -1.0, 10))
    found = round_sum(layout, layout.values(total), SENT, {}, 2, 30)
    assert found.rows == 40
    assert found.model["weight"].tolist() == pytest.approx([1.75, -1.0], abs=1e-6)
    assert found.model["weight"].dtype == torch.float32
    assert found.model["batches"] == 120 and found.model["batches"].dtype == torch.int64
    assert float(found.state["dual"]) == pytest.approx(0.5, abs=1e-10)
    assert (found.loss, found.negative) == pytest.approx((0.4, 0.25), abs=1e-8)
    assert found.validation is not None
    assert found.validation.confusion[1, 0].tolist() == [2, 2] and int(found.validation.confusion.sum()) == 4
    assert found.validation.loss[0].tolist() == pytest.approx([1.0, 3.0], abs=1e-8)


def test_the_stated_rounding_is_half_a_step_of_each_site_over_their_weights() -> None:
    """Two sites in 32 bits: 2^30 - 1 units each for a range of 16, so steps of 2^-25; weights 1 and 1/3."""
    layout = round_layout(SENT, {}, TASK, Secure(), 2)
    total = added(words(reply([1.1, 0.1], 100, 0.0), 0.0, 30), words(reply([0.7, 0.3], 100, 0.0), 0.0, 10))
    found = round_sum(layout, layout.values(total), SENT, {}, 2, 30)
    assert found.error == pytest.approx(2 * 2.0**-25 / 2 / (4 / 3))
    exact = [(3 * first + second) / 4 for first, second in zip((1.1, 0.1), (0.7, 0.3), strict=True)]
    assert np.abs(np.array(found.model["weight"].tolist()) - exact).max() <= found.error + 2e-7


def test_a_site_moves_the_state_by_its_own_tally() -> None:
    state: dict[str, Tensor] = {"dual": torch.tensor(0.5).double(), "penalty": torch.tensor(2.0).double()}
    sent = Snapshot(0, {}, state)
    moved = own_step(ffalm.FFALM(dual_lr=2.0), sent, tally(0.75, 0.5), 2, TASK)
    assert (float(moved["dual"]), float(moved["penalty"])) == (1.0, 2.0)
    assert own_step(ffalm.FedAvg(), sent, tally(0, 0), 2, TASK) == state


def test_scores_add_up() -> None:
    layout = score_layout(TASK, Secure(), 2)
    one = layout.words(score_numbers({"validation": tally(1, 2), "test": tally(3, 4)}))
    sums = layout.values(added(one, one))
    assert read_tally("test", sums).loss[0].tolist() == pytest.approx([6.0, 8.0], abs=1e-8)
    assert torch.equal(read_tally("validation", sums).confusion, 2 * tally(0, 0).confusion)
