"""Rows of groups that are not compared train like any others, and no constraint is about them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.variants import variants

from ffalm.algorithms import Algorithm, Batch, RoundReport, Rows
from ffalm.data.types import Task
from ffalm.fairness import Tally

TASK = Task("people", group_names=("a", "b", "unknown"), excluded=1)
DRAWS = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 2, (40,), generator=DRAWS)
GROUPS = torch.arange(40) % 3
LOSSES = torch.rand(40, generator=DRAWS, dtype=torch.float64)
CLIENTS = ("afl",)  # about losses of clients, to which all of a client's rows belong
everything = pytest.mark.parametrize("algorithm", [one for one in variants() if not one.gradients], ids=str)


def tally_of(losses: torch.Tensor, predictions: torch.Tensor) -> Tally:
    return Tally.of(predictions, losses, LABELS, GROUPS, (2, 3))


def report(unknown_loss: float, unknown_prediction: int) -> RoundReport:
    """Two clients whose rows of known groups are the same whatever those of unknown groups are."""
    unknown = GROUPS == 2
    losses = torch.where(unknown, unknown_loss, LOSSES)
    predictions = torch.where(unknown, unknown_prediction, (LOSSES < 0.6) ^ (LABELS == 0)).long()
    one = tally_of(losses, predictions)
    tally = Tally.stack([one, tally_of(losses, predictions ^ (GROUPS == 1))])
    return RoundReport(1, tally.count, torch.tensor([True, True]), tally, TASK, one)


@everything
def test_duals_do_not_depend_on_rows_of_unknown_group(algorithm: Algorithm) -> None:
    if algorithm.name in CLIENTS:
        pytest.skip("about clients, not groups")
    reports = [report(0.5, 0), report(9.0, 0)]
    start = algorithm.start(TASK, reports[0].counts)
    one, other = (algorithm.update(start, told) for told in reports)
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=0)
    for name, value in one[1].items():
        assert value.shape == start[name].shape
        torch.testing.assert_close(value, other[1][name], rtol=0, atol=0)
    if algorithm.name != "fairfed":  # where the metric is undefined, it compares the clients' accuracies
        changed = algorithm.update(start, report(0.5, 1))[1]
        for name, value in one[1].items():
            torch.testing.assert_close(value, changed[name], rtol=0, atol=0)


@everything
def test_what_training_adds_for_fairness_leaves_rows_of_unknown_group_alone(algorithm: Algorithm) -> None:
    told = report(0.5, 0)
    state = algorithm.update(algorithm.start(TASK, told.counts), told)[1]
    state = {name: value for name, value in state.items() if name in algorithm.broadcasts}
    state |= algorithm.own_state(TASK, told.counts[0])
    rows = Rows(LABELS, GROUPS, torch.ones(40, dtype=torch.bool), TASK)
    slopes = algorithm.slopes(Batch(rows, LOSSES), state)
    unknown = slopes[GROUPS == 2]
    torch.testing.assert_close(unknown, torch.full_like(unknown, 1 / 40))
    by_autograd = Algorithm.slopes(algorithm, Batch(rows, LOSSES), state)
    torch.testing.assert_close(slopes, by_autograd)


def test_a_report_says_which_groups_its_tallies_compare() -> None:
    told = report(0.5, 0)
    assert told.tally is not None and told.validation is not None
    assert told.tally.excluded == told.validation.excluded == 1
    changed = replace(told, tally=Tally.zeros((2, 3))).tally
    assert changed is not None and changed.excluded == 1
