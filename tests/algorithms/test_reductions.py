"""Reductions: hand-worked multipliers and prices; a grid of fixed multipliers in one stack."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract import TASK, task_of
from tests.engines.test_conformance import assert_same_numbers, jobs_of

import ffalm
from ffalm.algorithms import RoundReport, State
from ffalm.engines.prepared_jobs import prepare_job
from ffalm.engines.stacked.grouping import stacks
from ffalm.errors import UserError
from ffalm.fairness import Tally

#: Group 0 has a quarter of the rows.
COUNTS = torch.tensor([[[3, 6], [2, 9]]])
#: Of group 0 4 of 10 held-out rows are predicted favourable, of group 1 14 of 20; of both 18 of 30.
SEEN = Tally(torch.tensor([[[4, 5], [2, 1]], [[2, 5], [2, 9]]]), torch.zeros(2, 2, dtype=torch.float64))


def after(algorithm: ffalm.Reductions, seen: Tally | None = SEEN, state: State | None = None) -> State:
    told = RoundReport(1, COUNTS, torch.tensor([True]), None, TASK, seen)
    return algorithm.update(state or algorithm.start(TASK, COUNTS), told)[1]


def test_the_worked_step_of_exponentiated_gradient() -> None:
    """r = (0.4, 0.7) and 0.6 in all: v = (-0.2, 0.1), theta = +-2 v - 0.1, duals = bound (e+ - e-) / (1 + sum e)."""
    state = after(ffalm.Reductions(dual_lr=2.0, tolerance=0.05, bound=3.0))
    assert state["theta"].tolist() == [[pytest.approx([-0.5, 0.1]), pytest.approx([0.3, -0.3])]]
    total = 1 + sum(math.exp(theta) for theta in (-0.5, 0.1, 0.3, -0.3))
    duals = [3 * (math.exp(-0.5) - math.exp(0.3)) / total, 3 * (math.exp(0.1) - math.exp(-0.3)) / total]
    assert state["duals"].tolist() == [pytest.approx(duals)]
    prices = [duals[0] / 0.25 - sum(duals), duals[1] / 0.75 - sum(duals)]
    assert state["prices"][0].tolist() == [pytest.approx(prices)] * 2


def test_a_group_that_was_never_measured_has_no_multipliers_and_takes_no_part_in_those_of_others() -> None:
    algorithm, none = ffalm.Reductions(dual_lr=2.0, tolerance=0.05, bound=3.0), torch.zeros(2, 1)
    counts = torch.cat([COUNTS, torch.tensor([[[4], [6]]])], -1)
    seen = Tally(torch.cat([SEEN.confusion, torch.zeros(2, 2, 1).long()], -1), torch.cat([SEEN.loss, none], -1))
    told = RoundReport(1, counts, torch.tensor([True]), None, task_of(groups=3), seen)
    _, state = algorithm.update(algorithm.start(told.task, counts), told)
    assert state["duals"][0].tolist() == pytest.approx([*after(algorithm)["duals"][0].tolist(), 0.0])


def test_held_out_rows_are_needed_where_multipliers_are_learned_on_them() -> None:
    assert ffalm.Reductions().needs_held_out
    assert not ffalm.Reductions(measured="train").needs_held_out
    assert not ffalm.Reductions(multiplier=0.3).needs_held_out


def test_a_round_that_measures_one_group_alone_moves_nothing() -> None:
    algorithm = ffalm.Reductions(dual_lr=2.0, tolerance=0.05, bound=3.0)
    before = after(algorithm)
    alone = Tally(SEEN.confusion * torch.tensor([1, 0]), SEEN.loss)
    found = after(algorithm, alone, before)
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_the_multipliers_of_every_group_cancel_at_the_start() -> None:
    start = ffalm.Reductions().start(TASK, COUNTS)
    assert bool((start["duals"] == 0).all()) and bool((start["prices"] == 0).all())


def test_multipliers_sum_to_no_more_than_their_bound_however_large_theta_grows() -> None:
    state = after(ffalm.Reductions(dual_lr=1e4, bound=3.0))
    assert state["duals"].tolist() == [pytest.approx([-3, 0])]


def test_a_fixed_multiplier_prices_the_first_groups_rate_against_the_seconds() -> None:
    state = after(ffalm.Reductions(multiplier=0.3), seen=None)
    assert state["prices"][0].tolist() == [pytest.approx([1.2, -0.4])] * 2
    of_favourable = after(ffalm.Reductions("eo", multiplier=0.3))["prices"][0].tolist()
    assert of_favourable == [[0, 0], pytest.approx([0.3 * 10, -0.3 * 20 / 9])]


def test_a_grid_of_multipliers_trains_in_one_stack_and_keeps_the_loops_numbers() -> None:
    (one,) = jobs_of(ffalm.Reductions(multiplier=-1.0), seeds=1, rounds=2)
    grid = [-1.0, 0.0, 0.5, None]
    jobs = [replace(one, spec=replace(one.spec, algorithm=ffalm.Reductions(multiplier=value))) for value in grid]
    assert len(stacks([prepare_job(number, job) for number, job in enumerate(jobs)])) == 1
    assert_same_numbers("stacked", jobs)


def test_what_cannot_be_measured_or_compared_is_refused() -> None:
    with pytest.raises(UserError, match="Reductions measures gaps on held-out rows, and this federation has none"):
        after(ffalm.Reductions(), seen=None)
    with pytest.raises(UserError, match="Reductions compares two groups and this data has 3"):
        ffalm.Reductions(multiplier=1.0).start(task_of(groups=3), torch.ones(1, 2, 3))
    with pytest.raises(UserError, match="constraint of Reductions"):
        ffalm.Reductions("parity")
    with pytest.raises(UserError, match="'multiplier' of Reductions must be a finite number"):
        ffalm.Reductions(multiplier=math.nan)
    with pytest.raises(UserError, match="'measured' of Reductions"):
        ffalm.Reductions(measured="test")  # type: ignore[arg-type]


LEARNED_BY = {"tolerance": 0.1, "dual_lr": 1.0, "bound": 3.0, "measured": "train"}


@pytest.mark.parametrize(("name", "value"), LEARNED_BY.items())
def test_what_learns_the_multipliers_is_refused_beside_a_fixed_one(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"'{name}' of Reductions would change nothing, since a fixed multiplier"):
        ffalm.Reductions(multiplier=0.3, **{name: value})
