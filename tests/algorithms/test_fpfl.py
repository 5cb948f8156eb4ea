"""FPFL: hand-worked numbers, the identities of its distances, and FedAvg as its special case."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract import batch_of, report_of, task_of
from torch import Tensor

import ffalm
from ffalm.algorithms import Measure, RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally

LOSSES = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])
Form = Literal["abs", "positive_part"]


def duals(*values: float) -> State:
    return {"duals": torch.tensor(values, dtype=torch.float64)}


def report(
    losses: list[Tensor], groups: list[Tensor], group_count: int = 2, part: list[bool] | None = None
) -> RoundReport:
    """Clients that measured these losses."""
    tallies = []
    for loss, group in zip(losses, groups, strict=True):
        zeros = torch.zeros_like(group)
        tallies.append(Tally.of(zeros, loss, zeros, group, (2, group_count)))
    sizes = torch.tensor([len(loss) for loss in losses])
    taking_part = torch.tensor([True] * len(losses) if part is None else part)
    return report_of(1, sizes, taking_part, Tally.stack(tallies))


def objective(algorithm: ffalm.FPFL, losses: Tensor, groups: Tensor, state: State) -> Tensor:
    task = task_of(groups=state["duals"].shape[-1])
    return algorithm.objective(batch_of(losses, groups, task=task), state)


def row_weights(algorithm: ffalm.FPFL, losses: Tensor, groups: Tensor, state: State) -> Tensor:
    free = losses.clone().requires_grad_()
    (weights,) = torch.autograd.grad(objective(algorithm, free, groups, state), free)
    return weights


def distances(form: Form, losses: Tensor, groups: Tensor, group_count: int = 2) -> list[float]:
    """d_s of every group, read off a dual step of rate 1 from 0."""
    start = {"duals": torch.zeros(group_count, dtype=torch.float64)}
    algorithm = ffalm.FPFL(dual_lr=1.0, constraint=form)
    _, after = algorithm.update(start, report([losses], [groups], group_count))
    return [float(value) for value in after["duals"]]


def federation(seed: int = 0, flip: bool = False) -> ffalm.Federation:
    draws = np.random.default_rng(seed)
    clients = []
    for rows in (16, 25, 37):
        group = np.r_[0, 0, 1, 1, draws.integers(0, 2, rows)]
        y = np.r_[0, 1, 0, 1, draws.random(rows) < 0.3 + 0.4 * group[4:]].astype(int)
        x = draws.normal(size=(rows + 4, 5)) + 0.7 * y[:, None] + 0.3 * group[:, None]
        clients.append((x, y, 1 - group if flip else group))
    return ffalm.Federation.from_arrays(clients, test=clients[0])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("form", "value", "after"), [("positive_part", 0.73125, (0.225, 0.2)), ("abs", 0.9375, (0.225, 0.325))]
)
def test_the_worked_batch_has_the_worked_objective_and_duals(
    form: Form, value: float, after: tuple[float, float]
) -> None:
    algorithm = ffalm.FPFL(penalty=5.0, dual_lr=0.5, constraint=form)
    assert float(objective(algorithm, LOSSES, GROUPS, duals(0.1, 0.2))) == pytest.approx(value, abs=1e-12)
    _, moved = algorithm.update(duals(0.1, 0.2), report([LOSSES], [GROUPS]))
    assert moved["duals"].tolist() == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize(("form", "expected"), [("positive_part", [0.25, 0.0]), ("abs", [0.25, 0.25])])
def test_the_worked_batch_has_the_worked_distances(form: Form, expected: list[float]) -> None:
    assert distances(form, LOSSES, GROUPS) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", ["abs", "positive_part"])
@pytest.mark.parametrize("seed", range(5))
def test_row_weights_follow_from_the_chain_rule_by_hand(form: Form, seed: int) -> None:
    draws = np.random.default_rng(seed)
    groups = torch.tensor(np.r_[0, 1, 2, draws.integers(0, 3, 20)])
    losses, multipliers = torch.tensor(draws.random(23)), draws.random(3)
    algorithm = ffalm.FPFL(penalty=5.0, constraint=form, tolerance=0.02)
    expected = np.full(23, 1 / 23)
    for s in range(3):
        member = (groups == s).numpy()
        difference = float(losses.mean() - losses[groups == s].mean())
        side = np.sign(difference) if form == "abs" else float(difference > 0)
        distance = max(0.0, (abs(difference) if form == "abs" else difference) - 0.02)
        if distance > 0:
            push = (multipliers[s] + 5.0 * distance) * side
            expected += push * (1 / 23 - member / member.sum())
    weights = row_weights(algorithm, losses, groups, duals(*multipliers))
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 40))
def test_the_identities_of_the_distances_hold_on_random_batches(seed: int, rows: int) -> None:
    draws = np.random.default_rng(seed)
    groups = torch.tensor(np.r_[0, 1, draws.integers(0, 2, rows)])
    losses = torch.tensor(draws.exponential(size=rows + 2))
    n = [int((groups == s).sum()) for s in (0, 1)]
    mu = [float(losses[groups == s].mean()) for s in (0, 1)]
    absolute, positive = distances("abs", losses, groups), distances("positive_part", losses, groups)
    whole = sum(n)
    assert absolute == pytest.approx([n[1] / whole * abs(mu[1] - mu[0]), n[0] / whole * abs(mu[0] - mu[1])], abs=1e-9)
    assert absolute[0] * n[0] == pytest.approx(absolute[1] * n[1], abs=1e-9)
    better = 0 if mu[0] < mu[1] else 1
    assert positive[1 - better] == 0
    assert positive[better] == pytest.approx(absolute[better], abs=1e-12)
    assert positive[0] * positive[1] == 0


@pytest.mark.parametrize("form", ["abs", "positive_part"])
def test_equal_group_losses_leave_the_mean_loss_and_its_gradient(form: Form) -> None:
    losses = torch.tensor([0.25, 0.75, 0.75, 0.25], dtype=torch.float64)
    algorithm = ffalm.FPFL(constraint=form)
    assert float(objective(algorithm, losses, GROUPS, duals(3.0, 4.0))) == 0.5
    assert row_weights(algorithm, losses, GROUPS, duals(3.0, 4.0)).tolist() == [0.25] * 4
    assert distances(form, losses, GROUPS) == [0, 0]


@pytest.mark.parametrize("form", ["abs", "positive_part"])
@pytest.mark.parametrize("only", [0, 1])
def test_a_batch_of_one_group_is_weighed_as_by_fedavg(form: Form, only: int) -> None:
    groups = torch.full((4,), only)
    weights = row_weights(ffalm.FPFL(constraint=form), LOSSES, groups, duals(0.7, 0.9))
    assert weights.tolist() == pytest.approx([0.25] * 4, abs=1e-12)
    assert distances(form, LOSSES, groups) == pytest.approx([0, 0], abs=1e-15)


def test_duals_move_by_the_size_weighted_mean_of_the_distances_and_never_fall() -> None:
    small, large = LOSSES, torch.tensor([1.0, 0.0, 0.5, 0.5, 0.1, 0.3, 0.2, 0.2], dtype=torch.float64)
    groups = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    weights, after = ffalm.FPFL(dual_lr=0.5).update(duals(0.1, 0.2), report([small, large], [GROUPS, groups]))
    alone = [np.array(distances("abs", *pair)) for pair in ((small, GROUPS), (large, groups))]
    assert weights.tolist() == pytest.approx([1 / 3, 2 / 3])
    expected = np.array([0.1, 0.2]) + 0.5 * (alone[0] / 3 + alone[1] * 2 / 3)
    np.testing.assert_allclose(after["duals"].numpy(), expected, atol=1e-12)
    assert (after["duals"] >= torch.tensor([0.1, 0.2])).all()


def test_a_client_without_a_group_or_out_of_the_round_moves_no_dual() -> None:
    lonely = torch.zeros(4, dtype=torch.int64)
    told = report([LOSSES, LOSSES, 9 * LOSSES], [GROUPS, lonely, GROUPS], part=[True, True, False])
    weights, after = ffalm.FPFL(dual_lr=0.5).update(duals(0.0, 0.0), told)
    assert weights.tolist() == [0.5, 0.5, 0.0]
    assert after["duals"].tolist() == pytest.approx([0.5 * 0.5 * 0.25] * 2, abs=1e-12)


def test_a_tolerance_is_taken_off_the_distance() -> None:
    algorithm = ffalm.FPFL(dual_lr=1.0, tolerance=0.1)
    _, after = algorithm.update(duals(0.0, 0.0), report([LOSSES], [GROUPS]))
    assert after["duals"].tolist() == pytest.approx([0.15, 0.15], abs=1e-12)


def test_any_number_of_groups_has_a_dual_each() -> None:
    assert ffalm.FPFL().start(task_of(groups=3), torch.ones(4, 2, 3, dtype=torch.int64))["duals"].tolist() == [0, 0, 0]
    losses, groups = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), torch.tensor([0, 1, 2])
    assert distances("abs", losses, groups, 3) == pytest.approx([0.4, 0.0, 0.4], abs=1e-12)


def test_its_defaults_are_the_papers_with_the_absolute_value_restored() -> None:
    algorithm = ffalm.FPFL()
    assert (algorithm.penalty, algorithm.dual_lr, algorithm.constraint, algorithm.tolerance) == (5.0, 0.5, "abs", 0.0)
    assert algorithm.measure is Measure.TRAINED


@pytest.mark.parametrize("wrong", [{"penalty": -1.0}, {"dual_lr": -1.0}, {"tolerance": -0.1}, {"constraint": "square"}])
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ffalm.FPFL(**wrong)


@pytest.mark.parametrize(
    "algorithm",
    [
        ffalm.FPFL(tolerance=1e6),
        ffalm.FPFL(tolerance=1e6, constraint="positive_part"),
        ffalm.FPFL(penalty=0, dual_lr=0),
        ffalm.FPFL(penalty=0, dual_lr=0, constraint="positive_part"),
    ],
)
def test_a_wide_tolerance_or_no_multipliers_at_all_give_fedavg(algorithm: ffalm.FPFL) -> None:
    run: dict[str, Any] = {"rounds": 4, "batch_size": 8, "engine": "loop", "device": "cpu", "seed": 2}
    plain, fair = ffalm.simulate(ffalm.FedAvg(), federation(), **run), ffalm.simulate(algorithm, federation(), **run)
    assert same(plain.state_dict, fair.state_dict)
    assert fair.state["duals"].tolist() == [0, 0]


@pytest.mark.parametrize("form", ["abs", "positive_part"])
def test_swapping_group_names_swaps_the_duals_and_keeps_the_model(form: Form) -> None:
    run: dict[str, Any] = {"rounds": 4, "batch_size": 8, "engine": "loop", "device": "cpu"}
    one, other = (ffalm.simulate(ffalm.FPFL(constraint=form), federation(flip=flip), **run) for flip in (False, True))
    torch.testing.assert_close(one.state["duals"], other.state["duals"].flip(0), rtol=1e-5, atol=1e-7)
    for name, value in one.state_dict.items():
        torch.testing.assert_close(value, other.state_dict[name], rtol=1e-5, atol=1e-6)
    assert float(one.state["duals"].sum()) > 0


def test_duals_never_fall_over_a_run() -> None:
    run: dict[str, Any] = {"rounds": 6, "batch_size": 8, "engine": "loop", "device": "cpu"}
    history = ffalm.simulate(ffalm.FPFL(), federation(), **run).history
    for before, after in pairwise(history):
        assert all(new >= old for old, new in zip(before["duals"], after["duals"], strict=True))
