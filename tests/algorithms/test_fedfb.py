"""FedFB: hand-worked weights, their boxes, and FedAvg as its special case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.contract import TASK, batch_of, task_of

import ffalm
from ffalm.algorithms import RoundReport, State
from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.fairness import Tally

#: Rows and summed losses per (label, group), as two clients hold them.
COUNTS = torch.tensor([[[10, 6], [15, 20]], [[20, 4], [5, 20]]])
LOSSES = torch.tensor([[[4.0, 5.0], [6.0, 3.0]], [[11.0, 1.0], [2.0, 7.0]]], dtype=torch.float64)


def report(round: int = 1, losses: torch.Tensor = LOSSES, task: Task = TASK) -> RoundReport:
    tally = Tally(torch.stack([COUNTS, torch.zeros_like(COUNTS)], 1), losses)
    return RoundReport(round, COUNTS, torch.tensor([True, True]), tally, task)


def after(algorithm: ffalm.FedFB, told: RoundReport) -> tuple[torch.Tensor, State]:
    return algorithm.update(algorithm.start(told.task, COUNTS), told)


def test_the_worked_round() -> None:
    """m = (30, 20; 10, 40) and L = (15, 8; 6, 10) by group: F_1 = 0.18, lambda = (0.446, 0.554), weights n v."""
    weights, state = after(ffalm.FedFB(step=0.3), report())
    assert state["duals"].tolist() == pytest.approx([0.446, 0.554])
    assert (state["row_weights"] / 100).tolist() == [
        pytest.approx([0.00892, 0.01108]),
        pytest.approx([0.01108, 0.00892]),
    ]
    assert weights.tolist() == pytest.approx([0.51, 0.49])  # all rows weighed 1 in this round


def test_of_three_groups_the_first_moves_by_the_gaps_of_both_others() -> None:
    """f = ((1 + 2) / 4, 3/4, 1/4), so F = (0, -0.5): lambda = (4, 4, 4) / 12 + 0.3 * (0.5, 0, -0.5)."""
    counts = torch.tensor([[[2, 1, 3], [2, 3, 1]]])
    losses = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    task, algorithm = task_of(groups=3), ffalm.FedFB(step=0.3)
    tally = Tally(torch.stack([counts, torch.zeros_like(counts)], 1), losses)
    told = RoundReport(1, counts, torch.tensor([True]), tally, task)
    _, state = algorithm.update(algorithm.start(task, counts), told)
    assert state["duals"].tolist() == pytest.approx([1 / 3 + 0.15, 1 / 3, 1 / 3 - 0.15])


def test_the_step_shrinks_with_the_square_root_of_the_round() -> None:
    assert after(ffalm.FedFB(step=0.3), report(round=4))[1]["duals"].tolist() == pytest.approx([0.473, 0.527])


def test_clients_count_by_the_weights_of_their_rows() -> None:
    algorithm, state = ffalm.FedFB(), {"duals": torch.tensor([0.5, 0.5]).double()}
    state["row_weights"] = torch.tensor([[0.8, 1.2], [1.2, 0.8]], dtype=torch.float64)
    summed = torch.tensor([10 * 0.8 + 6 * 1.2 + 15 * 1.2 + 20 * 0.8, 20 * 0.8 + 4 * 1.2 + 5 * 1.2 + 20 * 0.8])
    weights, _ = algorithm.update(state, report())
    assert weights.tolist() == pytest.approx((summed / summed.sum()).tolist())


def test_where_no_row_of_those_that_take_part_has_a_weight_their_sizes_decide() -> None:
    state = {"duals": torch.tensor([0.5, 0.5]).double(), "row_weights": torch.zeros(2, 2).double()}
    weights, _ = ffalm.FedFB().update(state, replace(report(), taking_part=torch.tensor([True, False])))
    assert weights.tolist() == [1.0, 0.0]


def test_a_favoured_groups_unfavourable_rows_gain_weight() -> None:
    """All losses 0, so the rates are those of the labels: 0.4 of group 0 and 0.8 of group 1."""
    state = after(ffalm.FedFB(), report(losses=torch.zeros_like(LOSSES)))[1]
    assert state["row_weights"][0, 1] > 1 > state["row_weights"][0, 0]
    task = task_of(favourable=0)
    swapped = after(ffalm.FedFB(), report(losses=torch.zeros_like(LOSSES), task=task))[1]
    assert swapped["row_weights"][1, 0] > 1 > swapped["row_weights"][1, 1]


def test_equal_opportunity_moves_weight_between_favourable_rows() -> None:
    """f = (8/20, 10/40) = (0.4, 0.25), F_1 = -0.15: lambda = (0.2 + 0.045, 0.4 - 0.045)."""
    state = after(ffalm.FedFB(step=0.3, metric="eo"), report())[1]
    assert state["duals"].tolist() == pytest.approx([0.245, 0.355])
    assert state["row_weights"].tolist() == [[1, 1], pytest.approx([0.245 / 0.2, 0.355 / 0.4])]


@pytest.mark.parametrize(("metric", "bounds"), [("dp", [0.0, 1.0]), ("eo", [0.6, 0.0])])
def test_weights_stay_within_their_boxes(metric: str, bounds: list[float]) -> None:
    algorithm = ffalm.FedFB(step=1e6, metric=metric)  # type: ignore[arg-type]
    state = after(algorithm, report())[1]
    assert state["duals"].tolist() == pytest.approx(bounds)
    assert bool((state["row_weights"] >= 0).all())


def test_normalised_gaps_have_norm_1() -> None:
    assert after(ffalm.FedFB(step=0.1, normalised_step=True), report())[1]["duals"].tolist() == pytest.approx(
        [0.4, 0.6]
    )


def test_a_group_without_rows_moves_nothing() -> None:
    losses, counts = LOSSES.clone(), COUNTS.clone()
    losses[..., 1], counts[..., 1] = 0, 0
    tally = Tally(torch.stack([counts, torch.zeros_like(counts)], 1), losses)
    told = RoundReport(1, counts, torch.tensor([True, True]), tally, TASK)
    for metric in ("dp", "eo"):
        algorithm = ffalm.FedFB(metric=metric)
        state = algorithm.update(algorithm.start(TASK, counts), told)[1]
        assert bool((state["row_weights"] == 1).all())


def test_slopes_are_the_weights_by_the_number_of_rows() -> None:
    state = {"row_weights": torch.tensor([[0.892, 1.108], [1.108, 0.892]], dtype=torch.float64)}
    batch = batch_of(torch.tensor([0.3, 0.1]).double(), torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert ffalm.FedFB().slopes(batch, state).tolist() == pytest.approx([0.446, 0.554])
    assert float(ffalm.FedFB().objective(batch, state)) == pytest.approx(0.446 * 0.3 + 0.554 * 0.1)


def test_step_0_is_fedavg() -> None:
    weights, state = after(ffalm.FedFB(step=0.0), report())
    assert torch.equal(weights, report().shares())
    assert bool((state["row_weights"] == 1).all())


def test_more_than_two_labels_and_unknown_metrics_are_refused() -> None:
    with pytest.raises(UserError, match="FedFB is for two labels and this data has 3"):
        ffalm.FedFB().start(task_of(labels=3), torch.ones(2, 3, 2))
    with pytest.raises(UserError, match="'metric' of FedFB"):
        ffalm.FedFB(metric="eod")  # type: ignore[arg-type]
