"""The rate Lagrangian: hand-worked multipliers, prices and slopes; what it does to the gap that it is asked about."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.contract import TASK, batch_of, task_of
from tests.engines.test_conformance import FEATURES, assert_same_numbers, jobs_of
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import Lagrangian, RoundReport, State
from ffalm.algorithms.rates import RATES
from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.fairness import Tally

#: Training rows per (label, group): shares of the groups 0.75 and 0.25, of their favourable rows 0.3 and 0.1.
COUNTS = torch.tensor([[[10, 4], [8, 1]], [[8, 2], [4, 3]]])


def held_out(confusion: list[list[list[int]]]) -> Tally:
    counts = torch.tensor(confusion)
    return Tally(counts, torch.zeros(counts.shape[1:], dtype=torch.float64))


#: Of group 0 4 of 10 rows are predicted favourable (2 of 4 favourable ones), of group 1 14 of 20 (9 of 10).
SEEN = held_out([[[4, 5], [2, 1]], [[2, 5], [2, 9]]])


def after(algorithm: Lagrangian, state: State | None = None, tally: Tally | None = SEEN, task: Task = TASK) -> State:
    told = RoundReport(1, COUNTS, torch.tensor([True, True]), None, task, tally)
    return algorithm.update(state or algorithm.start(task, COUNTS), told)[1]


def test_the_multipliers_of_demographic_parity() -> None:
    """r = (0.4, 0.7), c = 0.55, v = (-0.15, 0.15); with tolerance 0.1 the excess is (-0.1, 0.1).

    up = 0.5 (v - 0.05) = (0, 0.05), down = (0.05, 0), duals = up - down + 2 * excess = (-0.25, 0.25).
    """
    found = after(Lagrangian("dp", tolerance=0.1))
    assert found["up"].tolist()[0] == pytest.approx([0, 0.05])
    assert found["down"].tolist()[0] == pytest.approx([0.05, 0])
    assert found["duals"].tolist()[0] == pytest.approx([-0.25, 0.25])
    favourable, correct, loss = found["prices"].tolist()
    assert favourable == [pytest.approx([-0.25 * 0.25 / 0.75, 0.25])] * 2
    assert correct == loss == [[0, 0], [0, 0]]


#: The rows of SEEN that are of group 0, and none of group 1.
ONE_GROUP = held_out([[[4, 0], [2, 0]], [[2, 0], [2, 0]]])


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_a_round_that_measures_one_group_alone_moves_nothing(tolerance: float) -> None:
    algorithm = Lagrangian("dp", tolerance=tolerance)
    before = after(algorithm)
    found = after(algorithm, before, ONE_GROUP)
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_a_group_that_a_round_does_not_measure_keeps_its_multipliers() -> None:
    """Rates (0.2, 0.6, 0.8), then group 2 is missing: v = (-0.3, 0.1, 0.3), then (-0.2, 0.2, -).

    up - down is half of v, then (-0.25, 0.15, 0.15): group 2's stays. Twice v is added, none of group 2, and the mean
    is taken off.
    """
    task, counts = task_of(groups=3), torch.tensor([[[5, 5, 5], [5, 5, 5]]])

    def told(favourable: list[int], rows: list[int]) -> RoundReport:
        others = [total - some for some, total in zip(favourable, rows, strict=True)]
        return RoundReport(
            1, counts, torch.tensor([True]), None, task, held_out([[others, [0] * 3], [favourable, [0] * 3]])
        )

    algorithm = Lagrangian("dp")
    first = algorithm.update(algorithm.start(task, counts), told([2, 6, 8], [10, 10, 10]))[1]
    found = algorithm.update(first, told([2, 6, 0], [10, 10, 0]))[1]
    assert (found["up"] - found["down"]).tolist()[0] == pytest.approx([-0.25, 0.15, 0.15])
    raw = [-0.25 - 0.4, 0.15 + 0.4, 0.15]
    assert found["duals"].tolist()[0] == pytest.approx([one - sum(raw) / 3 for one in raw])


def test_equal_opportunity_prices_favourable_rows_alone() -> None:
    """r = (0.5, 0.9), v = (-0.2, 0.2), no tolerance: up - down = (-0.1, 0.1), duals (-0.5, 0.5), scale 0.1."""
    found = after(Lagrangian("eo"))
    assert found["duals"].tolist()[0] == pytest.approx([-0.5, 0.5])
    unfavourable, favourable = found["prices"][0].tolist()
    assert unfavourable == [0, 0]
    assert favourable == pytest.approx([0.1 * -0.5 / 0.3, 0.5])


def test_equalised_odds_have_a_multiplier_for_each_label_and_group_and_several_constraints_add_up() -> None:
    assert after(Lagrangian("odds"))["duals"].shape == (2, 2)
    both = after(Lagrangian("dp,eo"))
    alone = [after(Lagrangian(name))["prices"] for name in ("dp", "eo")]
    torch.testing.assert_close(both["prices"], alone[0] + alone[1])
    accuracy = after(Lagrangian("accuracy"))["prices"]
    assert bool((accuracy[0] == 0).all()) and bool((accuracy[1] != 0).all())


def test_multipliers_relax_where_there_is_slack_and_stay_within_their_bound() -> None:
    wide = Lagrangian("dp", tolerance=0.5)
    before = {**wide.start(TASK, COUNTS), "up": torch.tensor([[0.0, 0.12]]).double()}
    assert after(wide, before)["up"].tolist()[0] == pytest.approx([0, 0.12 + 0.5 * (0.15 - 0.25)])
    tight = Lagrangian("dp", dual_lr=100.0, dual_bound=3.0)
    assert after(tight)["up"].tolist() == [[0, 3.0]]


def test_a_group_without_held_out_rows_is_left_out_of_the_comparison() -> None:
    task = task_of(groups=3)
    tally = held_out([[[4, 5, 0], [2, 1, 0]], [[2, 5, 0], [2, 9, 0]]])
    counts = torch.cat([COUNTS, torch.ones(2, 2, 1, dtype=torch.int64)], -1)
    told = RoundReport(1, counts, torch.tensor([True, True]), None, task, tally)
    found = Lagrangian("dp").update(Lagrangian("dp").start(task, counts), told)[1]
    assert found["duals"][0, 2] == 0 and found["duals"][0, :2].sum() == 0
    assert bool(found["prices"].isfinite().all())


def test_loss_parity_prices_losses() -> None:
    """Mean losses (0.5, 0.7): v = (-0.1, 0.1), duals 0.5 v + 2 v = (-0.25, 0.25), as for the rates above.

    A row of group 1 then weighs (1 + 0.25) / n, whatever its loss.
    """
    losses = torch.tensor([[3.0, 4.0], [2.0, 10.0]], dtype=torch.float64)  # over 10 and 20 rows
    found = after(Lagrangian("loss"), tally=Tally(SEEN.confusion, losses))
    assert found["duals"].tolist()[0] == pytest.approx([-0.25, 0.25])
    assert found["prices"][2].tolist() == [pytest.approx([-0.25 * 0.25 / 0.75, 0.25])] * 2
    batch = batch_of(torch.tensor([0.1, 2.0]).double(), torch.tensor([1, 1]), torch.tensor([1, 1]))
    assert Lagrangian("loss").slopes(batch, found).tolist() == pytest.approx([0.625, 0.625])


def test_slopes_of_the_worked_prices() -> None:
    """At p = 1/2 a favourable row of group 1 weighs (1 - 0.25 / 2) / n, an unfavourable one (1 + 0.25 / 2) / n."""
    state = {"prices": torch.tensor([[[0.0, 0.25]] * 2, [[0.0, 0.0]] * 2, [[0.0, 0.0]] * 2]).double()}
    losses = torch.full((4,), math.log(2), dtype=torch.float64)
    batch = batch_of(losses, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    found = Lagrangian("dp").slopes(batch, state)
    assert (4 * found).tolist() == pytest.approx([1.0, 1.125, 1.0, 0.875])
    assert float(Lagrangian("dp").objective(batch, state)) == pytest.approx(math.log(2) + 2 * 0.125 / 4)


def wide(labels: int) -> Any:
    return lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, labels)).double()


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("constraint", [*RATES, "dp,accuracy"])
def test_every_constraint_gives_the_reference_numbers_on_the_stacked_engine(constraint: str, labels: int) -> None:
    assert_same_numbers("stacked", jobs_of(Lagrangian(constraint), wide(labels), labels=labels))


def biased(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The label depends on a feature that differs between the groups; the last feature tells the group."""
    draws = torch.Generator().manual_seed(seed)
    group = (torch.rand(rows, generator=draws) < 0.5).long()
    x = torch.randn(rows, 3, generator=draws) + torch.stack([0.8 * group, -0.5 * group, 0 * group], 1)
    y = (x[:, 0] + 0.3 * x[:, 2] + 0.7 * torch.randn(rows, generator=draws) > 0.6 + 0.3 * group).long()
    return torch.cat([x, group.unsqueeze(1)], 1), y, group


@pytest.mark.parametrize(("constraint", "metric"), [("dp", "dpd"), ("eo", "eod")])
def test_the_gap_that_is_asked_about_closes(constraint: str, metric: str) -> None:
    clients: Any = [biased(400, seed) for seed in range(4)]
    federation = ffalm.Federation.from_arrays(clients, validation=biased(2000, 10), test=biased(4000, 11))
    plain = ffalm.simulate("fedavg", federation, rounds=40, lr=0.2)
    fair = ffalm.simulate(Lagrangian(constraint), federation, rounds=40, lr=0.2)
    assert fair.test[metric] < 0.03
    assert fair.test[metric] < plain.test[metric]


def test_settings_that_make_no_sense_and_missing_held_out_rows_are_refused() -> None:
    with pytest.raises(UserError, match="constraint of Lagrangian 'parity'"):
        Lagrangian("parity")
    with pytest.raises(UserError, match="held-out rows, and this federation has none"):
        after(Lagrangian("dp"), tally=None)
