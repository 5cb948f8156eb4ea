"""FFALM: hand-worked numbers, schedules, symmetry, and FedAvg as its special case."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import TASK, batch_of, report_of, task_of
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import Measure, RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally

LOSSES = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])
LABELS = torch.tensor([0, 1, 0, 1])
ALL = torch.ones(4, dtype=torch.bool)
COUNTS = torch.ones(2, 2, 2, dtype=torch.int64)


def state(dual: float, penalty: float) -> State:
    return {"dual": torch.tensor(dual, dtype=torch.float64), "penalty": torch.tensor(penalty, dtype=torch.float64)}


def report(gaps: list[float | None], sizes: list[int], round: int = 1, part: list[bool] | None = None) -> RoundReport:
    """Clients that measured these loss gaps (None: the client has group 0 only), with these training sizes."""
    tallies = []
    for gap in gaps:
        confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
        confusion[0, 0] = torch.tensor([4, 0 if gap is None else 2])
        loss = torch.zeros(2, 2, dtype=torch.float64)
        loss[0] = torch.tensor([4.0 * (1 + (gap or 0)), 0.0 if gap is None else 2.0], dtype=torch.float64)
        tallies.append(Tally(confusion, loss))
    taking_part = torch.tensor([True] * len(gaps) if part is None else part)
    return report_of(round, torch.tensor(sizes), taking_part, Tally.stack(tallies))


def row_weights(losses: Tensor, groups: Tensor, now: State) -> Tensor:
    """The objective's derivative by each row's loss."""
    free = losses.clone().requires_grad_()
    objective = ffalm.FFALM().objective(batch_of(free, groups), now)
    (weights,) = torch.autograd.grad(objective, free)
    return weights


def federation(seed: int = 0, clients: int = 3, images: bool = False, flip: bool = False) -> ffalm.Federation:
    """Uneven clients with a label that leans on the group; `flip` swaps the groups' names."""
    draws = np.random.default_rng(seed)

    def part(rows: int) -> tuple[Any, Any, Any]:
        group = np.r_[0, 0, 1, 1, draws.integers(0, 2, rows)]
        y = np.r_[0, 1, 0, 1, draws.random(rows) < 0.3 + 0.4 * group[4:]].astype(int)
        x = draws.normal(size=(rows + 4, 5)) + 0.7 * y[:, None] + 0.3 * group[:, None]
        if images:
            x = draws.normal(size=(rows + 4, 1, 8, 8)) + 0.5 * y[:, None, None, None]
        return x, y, 1 - group if flip else group

    owned = [part(14 + 9 * client) for client in range(clients)]
    return ffalm.Federation.from_arrays(owned, part(40), part(40))


def batchnorm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_objective_of_the_worked_batch_is_0_45() -> None:
    objective = ffalm.FFALM().objective(batch_of(LOSSES, GROUPS), state(0.7, 2.0))
    assert float(objective) == pytest.approx(0.45, abs=1e-12)


def test_the_rows_of_the_worked_batch_weigh_0_10_and_0_40() -> None:
    assert row_weights(LOSSES, GROUPS, state(0.7, 2.0)).tolist() == pytest.approx([0.1, 0.1, 0.4, 0.4], abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_row_weights_follow_the_closed_form_and_sum_to_one(seed: int) -> None:
    draws = np.random.default_rng(seed)
    groups = torch.tensor(np.r_[0, 1, draws.integers(0, 2, 30)])
    losses, dual, penalty = torch.tensor(draws.random(32)), float(draws.normal()), float(draws.random() * 5)
    gap = float(losses[groups == 0].mean() - losses[groups == 1].mean())
    a, n0, n1 = dual + penalty * gap, int((groups == 0).sum()), int((groups == 1).sum())
    expected = [1 / 32 + a / n0 if group == 0 else 1 / 32 - a / n1 for group in groups.tolist()]
    weights = row_weights(losses, groups, state(dual, penalty))
    assert weights.tolist() == pytest.approx(expected, abs=1e-12)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


def test_with_dual_0_and_no_gap_the_weights_are_fedavgs() -> None:
    losses = torch.tensor([0.2, 0.4, 0.2, 0.4], dtype=torch.float64)
    assert row_weights(losses, GROUPS, state(0.0, 7.0)).tolist() == [0.25] * 4


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("dual", [0.7, -20.0])
def test_a_batch_of_one_group_is_weighed_as_by_fedavg(only: int, dual: float) -> None:
    weights = row_weights(LOSSES, torch.full((4,), only), state(dual, 2.0))
    assert weights.tolist() == [0.25] * 4


def test_masked_rows_have_no_say() -> None:
    now, mask = state(0.7, 2.0), torch.tensor([True, True, True, True, False, False])
    longer = torch.cat([LOSSES, torch.tensor([9.0, 9.0], dtype=torch.float64)]).requires_grad_()
    groups = torch.tensor([0, 0, 1, 1, 0, 1])
    objective = ffalm.FFALM().objective(batch_of(longer, groups, mask=mask), now)
    (weights,) = torch.autograd.grad(objective, longer)
    assert weights.tolist() == pytest.approx([0.1, 0.1, 0.4, 0.4, 0, 0], abs=1e-12)


def test_swapping_groups_and_negating_the_dual_leaves_the_weights_bit_for_bit() -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(20):
        losses = torch.rand(33, generator=draws)
        groups = torch.randint(2, (33,), generator=draws)
        now = {name: value.float() for name, value in state(0.3, 2.0).items()}
        mirrored = {**now, "dual": -now["dual"]}
        assert torch.equal(row_weights(losses, groups, now), row_weights(losses, 1 - groups, mirrored))


def test_one_client_with_the_worked_gap_moves_the_dual_from_0_7_to_minus_0_3() -> None:
    _, after = ffalm.FFALM(dual_lr=2.0).update(state(0.7, 2.0), report([-0.5], [10]))
    assert float(after["dual"]) == pytest.approx(-0.3, abs=1e-12)


def test_the_server_averages_the_clients_duals_by_size_to_0_6() -> None:
    """Their own duals would be -0.3 and 0.9; with shares 0.25 and 0.75 the mean is 0.6."""
    weights, after = ffalm.FFALM(dual_lr=2.0).update(state(0.7, 2.0), report([-0.5, 0.1], [10, 30]))
    assert float(after["dual"]) == pytest.approx(0.6, abs=1e-12)
    assert weights.tolist() == [0.25, 0.75]


def test_ten_clients_are_a_true_mean_and_not_a_moving_average() -> None:
    """The released code's aliasing would give 6.0558 here, and move by 0.651 where all clients say 1."""
    spread: list[float | None] = [number - 5.5 for number in range(1, 11)]
    algorithm = ffalm.FFALM(dual_lr=1.0)
    _, after = algorithm.update(state(5.5, 2.0), report(spread, [10] * 10))
    assert float(after["dual"]) == pytest.approx(5.5, abs=1e-12)
    _, moved = algorithm.update(state(5.5, 2.0), report([1.0] * 10, [10] * 10))
    assert float(moved["dual"]) == pytest.approx(6.5, abs=1e-12)


@pytest.mark.parametrize(("round", "rate"), [(1, 2.0), (2, 2.1), (70, 57.955)])
def test_the_dual_rate_grows_by_the_papers_schedule(round: int, rate: float) -> None:
    _, after = ffalm.FFALM().update(state(0.0, 2.0), report([1.0], [10], round))
    assert float(after["dual"]) == pytest.approx(rate, abs=5e-4)


def test_the_released_schedule_ends_at_144_9_and_0_069() -> None:
    """The penalty of round 70 is left by the update of round 69."""
    released = ffalm.FFALM.preset("released-code")
    _, after = released.update(state(0.0, 5.0), report([0.0], [10], 69))
    assert float(after["penalty"]) == pytest.approx(144.9, abs=0.05)
    _, last = released.update(state(0.0, 5.0), report([1.0], [10], 70))
    assert float(last["dual"]) == pytest.approx(0.069, abs=5e-4)


def test_the_first_round_has_the_penalty_itself_and_the_dual_as_it_was_set() -> None:
    begun = ffalm.FFALM(penalty=5.0, penalty_growth=1.05, dual_init=0.4).start(TASK, COUNTS)
    assert (float(begun["penalty"]), float(begun["dual"])) == (5.0, 0.4)
    _, after = ffalm.FFALM(penalty=5.0, penalty_growth=1.05).update(begun, report([0.0], [10], 1))
    assert float(after["penalty"]) == pytest.approx(5.25)


@pytest.mark.parametrize(("gap", "expected"), [(3.0, 1.0), (-3.0, -1.0), (0.1, 0.2)])
def test_the_bound_holds_the_dual_on_both_sides(gap: float, expected: float) -> None:
    _, after = ffalm.FFALM(dual_lr=2.0, dual_bound=1.0).update(state(0.0, 2.0), report([gap], [10]))
    assert float(after["dual"]) == pytest.approx(expected)


def test_the_bound_holds_the_mean_and_not_each_client() -> None:
    """Clients at +6 and -5 average to 0.5, which a bound of 1 leaves alone."""
    _, after = ffalm.FFALM(dual_lr=1.0, dual_bound=1.0).update(state(0.0, 2.0), report([6.0, -5.0], [10, 10]))
    assert float(after["dual"]) == pytest.approx(0.5)


def test_a_client_without_a_group_keeps_the_dual_and_still_counts_in_the_shares() -> None:
    weights, after = ffalm.FFALM(dual_lr=2.0).update(state(0.7, 2.0), report([-0.5, None], [10, 30]))
    assert float(after["dual"]) == pytest.approx(0.7 + 0.25 * 2.0 * -0.5)
    assert weights.tolist() == [0.25, 0.75]


def test_clients_that_sit_out_count_neither_in_the_weights_nor_in_the_dual() -> None:
    told = report([-0.5, 99.0, 0.1], [10, 1000, 30], part=[True, False, True])
    weights, after = ffalm.FFALM(dual_lr=2.0).update(state(0.7, 2.0), told)
    assert weights.tolist() == [0.25, 0.0, 0.75]
    assert float(after["dual"]) == pytest.approx(0.6, abs=1e-12)


def test_gaps_of_zero_leave_the_dual_alone() -> None:
    _, after = ffalm.FFALM().update(state(0.7, 2.0), report([0.0, 0.0], [10, 20], 40))
    assert float(after["dual"]) == 0.7


def test_a_worse_group_0_raises_the_dual_and_shifts_weight_to_it() -> None:
    _, after = ffalm.FFALM().update(state(0.0, 2.0), report([0.5], [10]))
    assert float(after["dual"]) > 0
    weights = row_weights(torch.ones(4, dtype=torch.float64), GROUPS, after)
    assert weights[0] > 0.25 > weights[2]


def test_local_gaps_are_averaged_and_not_pooled() -> None:
    """ALGORITHMS 3.8: the mean of the gaps is -0.05, the gap of the pooled rows -0.57."""
    tallies = []
    for sizes, means in (((90, 10), (0.2, 0.4)), ((10, 90), (1.0, 0.9))):
        confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
        confusion[0, 0] = torch.tensor(sizes)
        loss = torch.zeros(2, 2, dtype=torch.float64)
        loss[0] = torch.tensor([n * mean for n, mean in zip(sizes, means, strict=True)], dtype=torch.float64)
        tallies.append(Tally(confusion, loss))
    stacked = Tally.stack(tallies)
    told = report_of(1, torch.tensor([100, 100]), torch.tensor([True, True]), stacked)
    _, after = ffalm.FFALM(dual_lr=1.0).update(state(0.0, 2.0), told)
    assert float(after["dual"]) == pytest.approx(-0.05, abs=1e-12)
    assert stacked.pooled().loss_gap() == pytest.approx(-0.57, abs=1e-12)


def test_leading_axes_are_several_seeds_at_once() -> None:
    tells = [report([-0.5, 0.1], [10, 30]), report([0.3, 0.2], [10, 30])]
    duals = torch.tensor([0.7, -0.2], dtype=torch.float64)
    assert tells[0].tally is not None
    assert tells[1].tally is not None
    both = report_of(
        3, torch.tensor([[10, 30], [10, 30]]), torch.ones(2, 2, dtype=torch.bool),
        Tally.stack([tells[0].tally, tells[1].tally]),
    )  # fmt: skip
    weights, after = ffalm.FFALM().update({"dual": duals, "penalty": torch.full((2,), 2.0).double()}, both)
    for seed in range(2):
        alone = report_of(3, tells[seed].sizes, tells[seed].taking_part, tells[seed].tally)
        expected_weights, expected = ffalm.FFALM().update(state(float(duals[seed]), 2.0), alone)
        assert float(after["dual"][seed]) == pytest.approx(float(expected["dual"]), abs=1e-15)
        assert torch.equal(weights[seed], expected_weights)


def test_the_presets_are_those_of_the_fact_sheet() -> None:
    assert ffalm.FFALM.preset("paper") == ffalm.FFALM()
    paper, released, safe = (ffalm.FFALM.preset(name) for name in ("paper", "released-code", "safe"))
    assert (paper.penalty, paper.dual_lr, paper.dual_lr_growth, paper.penalty_growth) == (2.0, 2.0, 1.05, 1.0)
    assert (paper.dual_data, paper.dual_bound, paper.dual_init) == ("full", None, 0.0)
    assert (released.penalty, released.dual_lr, released.penalty_growth) == (5.0, 2.0, 1.05)
    assert released.dual_lr_growth == pytest.approx(1 / 1.05)
    assert (released.dual_data, released.dual_bound) == ("last_batch", None)
    assert (safe.penalty, safe.dual_lr, safe.dual_lr_growth, safe.penalty_growth) == (2.0, 0.2, 1.0, 1.0)
    assert (safe.dual_data, safe.dual_bound) == ("full", 1.0)


def test_recommended_is_what_the_ablation_chose() -> None:
    assert ffalm.FFALM.recommended() == replace(ffalm.FFALM.preset("safe"), dual_decay=0.1)


@pytest.mark.parametrize(("gap", "needed"), [("clients", False), ("pooled", False), ("held_out", True)])
def test_held_out_rows_are_needed_for_their_own_gap_alone(gap: Any, needed: bool) -> None:
    assert ffalm.FFALM(gap=gap).needs_held_out == needed


def test_a_preset_can_be_changed_and_an_unknown_one_is_answered_with_the_nearest() -> None:
    assert ffalm.FFALM.preset("safe", penalty=5.0) == ffalm.FFALM(5.0, 0.2, 1.0, 1.0, 1.0)
    with pytest.raises(UserError, match="did you mean 'paper'"):
        ffalm.FFALM.preset("papper")


def test_the_gap_is_measured_where_the_setting_says() -> None:
    measures = {"full": Measure.TRAINED, "last_batch": Measure.LAST_BATCH, "epoch_mean": Measure.EPOCH}
    for name, measure in measures.items():
        assert ffalm.FFALM(dual_data=name).measure is measure  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": -1.0},
        {"dual_lr": -0.1},
        {"dual_lr_growth": 0.0},
        {"penalty_growth": -1.0},
        {"dual_bound": 0.0},
        {"dual_init": math.nan},
        {"penalty": math.inf},
        {"dual_data": "first_batch"},
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ffalm.FFALM(**settings)


def test_three_groups_have_two_duals_each_for_a_gap_to_group_0() -> None:
    """Losses 0.2 0.4 | 0.6 1.0 | 0.9: means 0.3, 0.8, 0.9, gaps -0.5 and -0.6, L = 0.62.

    With duals 0.7 and -0.1 and penalty 2: J = 0.62 - 0.35 + 0.06 + 0.25 + 0.36 = 0.94; the pulls are 0.7 - 1 = -0.3
    and -0.1 - 1.2 = -1.3, so rows weigh 0.2 - 1.6 / 2 = -0.6, 0.2 + 0.3 / 2 = 0.35 and 0.2 + 1.3 = 1.5.
    """
    task = task_of(groups=3)
    losses = torch.tensor([0.2, 0.4, 0.6, 1.0, 0.9], dtype=torch.float64)
    batch = batch_of(losses, torch.tensor([0, 0, 1, 1, 2]), task=task)
    begun = ffalm.FFALM(dual_init=0.7).start(task, torch.ones(2, 2, 3, dtype=torch.int64))
    assert begun["dual"].tolist() == [0.7, 0.7]
    now = {**begun, "dual": torch.tensor([0.7, -0.1], dtype=torch.float64)}
    assert float(ffalm.FFALM().objective(batch, now)) == pytest.approx(0.94, abs=1e-12)
    assert ffalm.FFALM().slopes(batch, now).tolist() == pytest.approx([-0.6, -0.6, 0.35, 0.35, 1.5], abs=1e-12)
    confusion = torch.zeros(1, 2, 2, 3, dtype=torch.int64)
    confusion[0, 0, 0] = torch.tensor([2, 2, 1])
    loss = torch.zeros(1, 2, 3, dtype=torch.float64)
    loss[0, 0] = torch.tensor([0.6, 1.6, 0.9], dtype=torch.float64)
    told = report_of(1, torch.tensor([5]), torch.tensor([True]), Tally(confusion, loss), task)
    assert ffalm.FFALM().update(now, told)[1]["dual"].tolist() == pytest.approx([-0.3, -1.3], abs=1e-12)
    bounded = ffalm.FFALM(dual_bound=1.0).update(now, told)[1]["dual"]
    assert bounded.tolist() == pytest.approx([-0.3, -1.0], abs=1e-12)


def test_a_batch_without_a_group_has_no_gap_to_it() -> None:
    task = task_of(groups=3)
    now = {"dual": torch.tensor([0.7, 5.0], dtype=torch.float64), "penalty": torch.tensor(2.0, dtype=torch.float64)}
    three = ffalm.FFALM().slopes(batch_of(LOSSES, GROUPS, task=task), now)
    assert three.tolist() == pytest.approx([0.1, 0.1, 0.4, 0.4], abs=1e-12)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("batch_size", [8, None])
def test_without_penalty_and_dual_rate_it_is_fedavg_bit_for_bit(images: bool, batch_size: int | None) -> None:
    owned = federation(images=images)
    model: str | Callable[[], nn.Module] = batchnorm_cnn if images else "mlp"
    settings: dict[str, Any] = {
        "model": model,
        "rounds": 4,
        "batch_size": batch_size,
        "lr": 0.2,
        "device": "cpu",
        "threads": 1,
    }
    plain = ffalm.simulate(ffalm.FedAvg(), owned, seed=3, engine="loop", **settings)
    for dual_data in ("full", "last_batch", "epoch_mean"):
        algorithm = replace(ffalm.FFALM(penalty=0, dual_lr=0), dual_data=dual_data)
        fair = ffalm.simulate(algorithm, owned, seed=3, engine="loop", **settings)
        assert same(plain.state_dict, fair.state_dict)
        assert plain.test == fair.test
        assert float(fair.state["dual"]) == 0


def test_with_its_defaults_it_is_not_fedavg() -> None:
    settings: dict[str, Any] = {"rounds": 2, "engine": "loop", "device": "cpu"}
    plain, fair = (ffalm.simulate(algorithm, federation(), **settings) for algorithm in (ffalm.FedAvg(), ffalm.FFALM()))
    assert not same(plain.state_dict, fair.state_dict)


def test_swapping_group_names_gives_the_same_model_bit_for_bit_and_the_negated_dual() -> None:
    settings: dict[str, Any] = {"rounds": 5, "batch_size": 8, "engine": "loop", "device": "cpu"}
    one = ffalm.simulate(ffalm.FFALM(dual_init=0.3), federation(), **settings)
    other = ffalm.simulate(ffalm.FFALM(dual_init=-0.3), federation(flip=True), **settings)
    assert same(one.state_dict, other.state_dict)
    assert float(one.state["dual"]) == -float(other.state["dual"]) != 0


def test_clients_of_one_group_each_train_as_under_fedavg() -> None:
    draws = np.random.default_rng(1)
    clients = [(draws.normal(size=(20, 3)), np.arange(20) % 2, np.full(20, group)) for group in (0, 1)]
    owned = ffalm.Federation.from_arrays(clients)
    settings: dict[str, Any] = {"rounds": 3, "batch_size": 6, "engine": "loop", "device": "cpu"}
    plain = ffalm.simulate(ffalm.FedAvg(), owned, **settings)
    fair = ffalm.simulate(ffalm.FFALM(dual_init=0.5), owned, **settings)
    assert same(plain.state_dict, fair.state_dict)
    assert float(fair.state["dual"]) == 0.5


@pytest.mark.parametrize(
    "settings", [{"dual_lr_growth": None}, {"penalty_growth": None}, {"dual_init": -2.0, "dual_bound": 1.0}]
)
def test_settings_that_no_round_could_use_are_refused_before_the_first(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="FFALM"):
        ffalm.FFALM(**settings)
