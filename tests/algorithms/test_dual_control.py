"""The settings of FFALM beyond the paper's: worked by hand, each alone, and off by default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contract import TASK, batch_of, report_of, task_of

import ffalm
from ffalm.algorithms import Measure, RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally

COUNTS = torch.ones(2, 2, 2, dtype=torch.int64)


def tally(rows: tuple[int, int], losses: tuple[float, float]) -> Tally:
    """So many rows of the two groups, with these mean losses."""
    confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
    confusion[0, 0] = torch.tensor(rows)
    loss = torch.zeros(2, 2, dtype=torch.float64)
    loss[0] = torch.tensor(rows) * torch.tensor(losses, dtype=torch.float64)
    return Tally(confusion, loss)


def report(round: int = 1, gap: float | None = None, validation: Tally | None = None) -> RoundReport:
    """Clients of 4 and 12 rows with gaps 1 - 0.5 and 0.2 - 0.6: shares 1/4 and 3/4. Or one client with a `gap`."""
    if gap is not None:
        one = Tally.stack([tally((5, 5), (1 + gap, 1.0))])
        return report_of(round, torch.tensor([10]), torch.tensor([True]), one)
    told = Tally.stack([tally((1, 3), (1.0, 0.5)), tally((9, 3), (0.2, 0.6))])
    return report_of(round, torch.tensor([4, 12]), torch.tensor([True, True]), told, validation=validation)


def after(gaps: list[float], **settings: Any) -> State:
    """The state after rounds in which one client measured these gaps."""
    algorithm = ffalm.FFALM(**{"dual_lr": 1.0, "dual_lr_growth": 1.0, **settings})
    state = algorithm.start(TASK, COUNTS)
    for round, gap in enumerate(gaps, start=1):
        _, state = algorithm.update(state, report(round, gap))
    return state


def duals(gaps: list[float], **settings: Any) -> list[float]:
    """The dual after each round."""
    return [float(after(gaps[: count + 1], **settings)["dual"]) for count in range(len(gaps))]


def test_the_settings_are_off_by_default_and_leave_the_state_as_it_was() -> None:
    assert ffalm.FFALM().start(TASK, COUNTS).keys() == {"dual", "penalty"}
    assert not ffalm.FFALM(penalty_growth=1.05).control.active


def test_the_mean_of_the_clients_gaps_moves_the_dual_by_minus_0_175() -> None:
    """1/4 * 0.5 + 3/4 * (-0.4)."""
    algorithm = ffalm.FFALM(dual_lr=1.0)
    _, state = algorithm.update(algorithm.start(TASK, COUNTS), report())
    assert float(state["dual"]) == pytest.approx(-0.175, abs=1e-12)


def test_the_pooled_gap_moves_the_dual_by_minus_0_27() -> None:
    """Group 0 has (1 + 1.8) / 10 = 0.28, group 1 has (1.5 + 1.8) / 6 = 0.55."""
    algorithm = ffalm.FFALM(dual_lr=1.0, gap="pooled")
    _, state = algorithm.update(algorithm.start(TASK, COUNTS), report())
    assert float(state["dual"]) == pytest.approx(-0.27, abs=1e-12)


def test_the_held_out_gap_moves_the_dual_whatever_the_clients_measured() -> None:
    algorithm = ffalm.FFALM(dual_lr=1.0, gap="held_out")
    assert algorithm.measure is Measure.NOTHING
    _, state = algorithm.update(algorithm.start(TASK, COUNTS), report(validation=tally((20, 30), (0.7, 0.4))))
    assert float(state["dual"]) == pytest.approx(0.3, abs=1e-12)


def test_a_held_out_gap_without_held_out_rows_is_refused_in_a_sentence() -> None:
    algorithm = ffalm.FFALM(gap="held_out")
    with pytest.raises(UserError, match="this federation has none"):
        algorithm.update(algorithm.start(TASK, COUNTS), report())


@pytest.mark.parametrize(
    ("gap", "expected"), [("clients", -0.8), ("pooled", -0.27 / 0.38125), ("held_out", 0.3 / 0.52)]
)
def test_a_normalised_gap_is_in_units_of_the_mean_loss(gap: Any, expected: float) -> None:
    """The clients' mean losses are 2.5/4 = 0.625 and 3.6/12 = 0.3: 1/4 * 0.8 + 3/4 * (-4/3) = -0.8."""
    algorithm = ffalm.FFALM(dual_lr=1.0, gap=gap, normalised_gap=True)
    _, state = algorithm.update(algorithm.start(TASK, COUNTS), report(validation=tally((20, 30), (0.7, 0.4))))
    assert float(state["dual"]) == pytest.approx(expected, abs=1e-12)


def test_decaying_steps_sum_to_1_75() -> None:
    assert duals([1.0, 1.0, 1.0], dual_lr_growth=0.5) == pytest.approx([1.0, 1.5, 1.75], abs=1e-12)


def test_a_capped_step_moves_the_dual_by_the_cap_at_most() -> None:
    assert duals([1.0, -0.1, -3.0], dual_step_cap=0.25) == pytest.approx([0.25, 0.15, -0.1], abs=1e-12)


def test_a_decaying_dual_forgets_a_share_of_itself_each_round() -> None:
    """0.5 * 0.4 + 0.4, and 0.5 * 0.6 + 0."""
    assert duals([0.4, 0.4, 0.0], dual_decay=0.5) == pytest.approx([0.4, 0.6, 0.3], abs=1e-12)


def test_a_controlled_dual_takes_steps_of_the_size_of_the_round() -> None:
    """0.2 * 0.5, and 0.9 * 0.1 + 0.4 * (-0.2)."""
    found = duals([0.5, -0.2], dual_lr=0.2, dual_lr_growth=2.0, dual_decay=0.1)
    assert found == pytest.approx([0.1, 0.01], abs=1e-12)


def test_a_pi_controller_adds_the_present_gap_to_the_integral() -> None:
    assert duals([0.4, 0.2, 0.0], dual_proportional=2.0) == pytest.approx([1.2, 1.0, 0.6], abs=1e-12)


def test_the_integral_stops_at_the_bound_so_that_the_dual_can_turn_at_once() -> None:
    assert duals([3.0, 3.0, -0.5], dual_proportional=1.0, dual_bound=1.0) == pytest.approx([1.0, 1.0, 0.0], abs=1e-12)


def test_a_feasibility_driven_penalty_grows_only_while_the_gap_does_not_shrink_enough() -> None:
    """Round 1 has nothing before it; |-0.9| > 0.8 * 1 grows; 0.5 < 0.8 * |-0.9| does not; 0.45 > 0.4 does."""
    gaps = [1.0, -0.9, 0.5, 0.45]
    settings = {"penalty": 1.0, "penalty_growth": 1.1, "sufficient_decrease": 0.8}
    found = [float(after(gaps[: count + 1], **settings)["penalty"]) for count in range(4)]
    assert found == pytest.approx([1.1, 1.21, 1.21, 1.331], abs=1e-12)


def test_without_it_the_penalty_grows_every_round_under_a_controller_too() -> None:
    assert float(after([1.0, 0.1, 0.0], penalty=1.0, penalty_growth=2.0, dual_decay=0.1)["penalty"]) == 8.0


def test_of_three_groups_the_largest_gap_decides_on_the_penalty() -> None:
    algorithm = ffalm.FFALM(penalty=1.0, penalty_growth=2.0, sufficient_decrease=0.5, dual_lr=1.0, dual_step_cap=0.3)
    state = algorithm.start(task_of(groups=3), torch.ones(1, 2, 3, dtype=torch.int64))
    state = {**state, "gap": torch.tensor([0.1, 0.6], dtype=torch.float64)}
    confusion = torch.ones(1, 2, 2, 3, dtype=torch.int64)
    loss = torch.tensor([[[4.0, 3.9, 5.6], [0.0, 0.0, 0.0]]], dtype=torch.float64)  # gaps 0.025 and -0.4
    told = report_of(1, torch.tensor([12]), torch.tensor([True]), Tally(confusion, loss), task=task_of(groups=3))
    _, state = algorithm.update(state, told)
    assert state["dual"].tolist() == pytest.approx([0.025, -0.3], abs=1e-12)
    assert float(state["penalty"]) == 2.0  # |-0.4| > 0.5 * 0.6


@pytest.mark.parametrize(
    ("dual", "weights"),
    [(9.0, [1.0, 0.0, 0.0, 0.0]), (-9.0, [0.0, 1 / 3, 1 / 3, 1 / 3]), (0.3, [0.55, 0.15, 0.15, 0.15])],
)
def test_no_row_weighs_less_than_0_with_nonnegative_weights(dual: float, weights: list[float]) -> None:
    """One row of group 0 and three of group 1: a is clamped to [-1/4, 3/4]."""
    losses, groups = torch.ones(4, dtype=torch.float64), torch.tensor([0, 1, 1, 1])
    state = {"dual": torch.tensor(dual, dtype=torch.float64), "penalty": torch.tensor(2.0, dtype=torch.float64)}
    found = ffalm.FFALM(nonnegative_weights=True).slopes(batch_of(losses, groups), state)
    assert found.tolist() == pytest.approx(weights, abs=1e-12)
    assert bool((found >= 0).all())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dual_decay": 1.5}, "dual_decay"),
        ({"dual_decay": -0.1}, "dual_decay"),
        ({"dual_step_cap": 0.0}, "dual_step_cap"),
        ({"dual_proportional": -1.0}, "dual_proportional"),
        ({"sufficient_decrease": -1.0}, "sufficient_decrease"),
        ({"sufficient_decrease": 0.9}, "needs penalty_growth above 1; got 1"),
        ({"gap": "held_out", "dual_data": "last_batch"}, "'dual_data' of FFALM would change nothing, since the gap"),
        ({"gap": "held-out"}, "did you mean 'held_out'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ffalm.FFALM(**settings)
