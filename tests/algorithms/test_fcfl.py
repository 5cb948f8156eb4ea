"""FCFL: its disparity, both stages by hand, and a run against an independent simulation in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.contract import TASK, everyone, task_of, vector
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import FCFL, Batch, RoundReport, Rows, State
from ffalm.errors import UserError

COUNTS = torch.ones(2, 2, 2, dtype=torch.int64)


def batch(logits: Tensor, labels: list[int], groups: list[int], groups_in_task: int = 2) -> Batch:
    y = torch.tensor(labels)
    rows = Rows(y, torch.tensor(groups), torch.ones(len(labels), dtype=torch.bool), task_of(groups=groups_in_task))
    return Batch(rows, nn.functional.cross_entropy(logits, y, reduction="none"), logits)


def odds(*values: float) -> Tensor:
    """Logits whose log-odds of label 1 are these."""
    return torch.stack([torch.zeros(len(values)), torch.tensor(values)], -1).double()


def told(values: list[list[float]], gradients: list[list[list[float]]], round: int = 1) -> RoundReport:
    """Clients with these (loss, disparity), and the gradients of (gradient, client, number)."""
    vectors = torch.tensor(gradients, dtype=torch.float64)
    products = torch.einsum("ain,bjn->aibj", vectors, vectors)
    report = replace(everyone(*[4] * len(values)), round=round, lr=0.1)
    return replace(report, values=torch.tensor(values, dtype=torch.float64), products=products)


def direction(algorithm: FCFL, report: RoundReport, gradients: list[list[list[float]]]) -> tuple[Tensor, State]:
    """The step's direction and the next state."""
    clients = len(report.sizes)
    state = algorithm.start(TASK, torch.ones(clients, 2, 2))
    weights, state = algorithm.update(state, report)
    torch.testing.assert_close(weights, report.shares())
    shares = algorithm.weigh_uploads(weights, state)
    sums = [share @ torch.tensor(own, dtype=torch.float64)
            for share, own in zip(shares.values(), gradients, strict=True)]  # fmt: skip
    uploads = {name: vector(*own.tolist()) for name, own in zip(shares, sums, strict=True)}
    model, _ = algorithm.server_step(vector(0, 0), vector(9, 9), {}, uploads, report)
    return -model.tensors[0] / report.lr, state


def test_the_disparity_is_the_gap_of_the_groups_smooth_rates() -> None:
    logits = odds(0.1, 0.3, -0.2, 0.4)
    rates = torch.tensor([1.0, 3.0, -2.0, 4.0]).double().sigmoid()
    given = batch(logits, [1, 0, 1, 0], [0, 0, 1, 1])
    found = FCFL().objectives(given, {})
    assert float(found[0]) == pytest.approx(float(given.losses.mean()))
    assert float(found[1]) == pytest.approx(abs(float(rates[:2].mean() - rates[2:].mean())))
    assert float(FCFL(constraint="eo").objectives(given, {})[1]) == pytest.approx(float(rates[0] - rates[2]))
    assert float(FCFL(sharpness=1.0).objectives(given, {})[1]) < float(found[1])


def test_of_more_groups_the_disparity_is_the_largest_gap_and_rows_of_unknown_group_do_not_count() -> None:
    three = batch(odds(0.1, 0.0, -0.1), [0, 1, 0], [0, 1, 2], groups_in_task=3)
    rates = torch.tensor([1.0, 0.0, -1.0]).sigmoid()
    assert float(FCFL().objectives(three, {})[1]) == pytest.approx(float(rates[0] - rates[2]))
    absent = batch(odds(0.1, 0.0, -0.1), [0, 1, 0], [0, 2, 2], groups_in_task=3)
    assert float(FCFL().objectives(absent, {})[1]) == pytest.approx(float(rates[0] - rates[1:].mean()))
    unknown = replace(task_of(groups=3), excluded=1)
    only_two = three._replace(rows=three.rows._replace(task=unknown))
    assert float(FCFL().objectives(only_two, {})[1]) == pytest.approx(float(rates[0] - rates[1]))


@pytest.mark.parametrize("groups", [[1, 1, 1], [0, 0, 0]])
def test_a_client_that_lacks_a_group_has_no_disparity_and_no_gradient_of_it(groups: list[int]) -> None:
    values, (_, slopes) = FCFL().objective_slopes(batch(odds(0.1, 0.5, -3.0), [0, 1, 1], groups), {})
    assert float(values[1]) == 0
    assert slopes.tolist() == [[0.0, 0.0]] * 3


def test_within_the_budget_stage_1_follows_the_smooth_worst_loss() -> None:
    gradients = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 0.5]]]
    found, _ = direction(FCFL(), told([[0.4, 0.02], [0.6, 0.05]], gradients), gradients)
    assert found.tolist() == pytest.approx([0.401312, 0.598688], abs=1e-6)


def test_beyond_the_budget_stage_1_lowers_the_disparity_without_raising_the_loss() -> None:
    """Equal clients with G_l = (1, 0) and G_g = (-1, 1): alpha = (1/2, 1/2), d = (0, 1/2)."""
    gradients = [[[1.0, 0.0]] * 2, [[-1.0, 1.0]] * 2]
    found, state = direction(FCFL(), told([[0.5, 0.3], [0.5, 0.3]], gradients), gradients)
    assert found.tolist() == pytest.approx([0.0, 0.5])
    assert state["gradient_weights"].tolist() == [[0.25, 0.25], [0.25, 0.25]]


@pytest.mark.parametrize(("settings", "constrained"), [
    ({}, True),
    ({"epsilon": 1.0}, False),
    ({"epsilon": None}, False),
    ({"client_epsilons": (0.5, 0.5)}, False),
    ({"client_epsilons": (0.5, 0.2)}, True),
])  # fmt: skip
def test_which_budget_is_exceeded(settings: dict[str, Any], constrained: bool) -> None:
    gradients = [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    found, _ = direction(FCFL(**settings), told([[0.5, 0.3], [0.5, 0.3]], gradients), gradients)
    assert found.tolist() == ([0.0, 1.0] if constrained else [1.0, 0.0])


def test_a_delta_shrinks_to_a_hundredth_once_its_gradient_is_small() -> None:
    """Norms 8 and 3: a tenth of the first is more than 0.5, a tenth of the second less."""
    gradients = [[[8.0, 0.0]] * 2, [[0.0, 3.0]] * 2]
    _, state = direction(FCFL(), told([[0.5, 0.3], [0.5, 0.3]], gradients), gradients)
    assert float(state["loss_delta"]) == 0.5
    assert float(state["disparity_delta"]) == pytest.approx(0.005)


@pytest.mark.parametrize("gap", [0.3, 0.0])
def test_along_the_direction_of_stage_2_no_loss_and_no_active_disparity_rises(gap: float) -> None:
    draws = torch.Generator().manual_seed(3)
    for _ in range(5):
        losses, gaps = torch.randn(2, 3, 2, generator=draws, dtype=torch.float64)
        losses = losses + torch.tensor([1.0, 0.0])  # some direction lowers every loss
        gradients = [losses.tolist(), gaps.tolist()]
        report = told([[0.5, gap], [0.6, gap], [0.9, gap]], gradients, round=2)
        found, state = direction(FCFL(minimax_rounds=1), report, gradients)
        assert bool((losses @ found >= -1e-6).all())
        assert bool((state["gradient_weights"] >= 0).all())
        if gap:
            smooth = torch.full((3,), 1 / 3, dtype=torch.float64)
            assert float(smooth @ gaps @ found) >= -1e-6
        else:
            assert not state["gradient_weights"][1].any()
        assert float(state["loss_delta"]) == 0.5


def test_a_step_of_stage_2_by_hand() -> None:
    """Excesses 0.5 and -0.05 have the weights softmax(0, -1.1) = (0.750260, 0.249740), so G_g = (-1, b), b = 0.500520.

    Both losses have the gradient (1, 0), so d = (1 - t) (1, 0) + t G_g is orthogonal to G_g at t = 1 / (2 + b^2).
    """
    gradients = [[[1.0, 0.0]] * 2, [[-1.0, 1.0], [-1.0, -1.0]]]
    report = told([[0.5, 0.6], [0.6, 0.05]], gradients, round=2)
    found, _ = direction(FCFL(minimax_rounds=1), report, gradients)
    share = 1 / (2 + 0.500520**2)
    assert found.tolist() == pytest.approx([1 - 2 * share, share * 0.500520], abs=1e-5)


def test_clients_that_do_not_take_part_weigh_nothing() -> None:
    algorithm, gradients = FCFL(), [[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3]
    report = told([[0.5, 0.3], [99.0, 0.9], [0.5, 0.3]], gradients)
    report = replace(report, taking_part=torch.tensor([True, False, True]))
    _, state = algorithm.update(algorithm.start(TASK, torch.ones(3, 2, 2)), report)
    assert state["gradient_weights"].tolist() == [[0.0, 0.0, 0.0], [0.5, 0.0, 0.5]]


@pytest.mark.parametrize(("settings", "why"), [
    ({"epsilon": -0.1}, "'epsilon' of FCFL must be 0 or more"),
    ({"delta": 0}, "'delta' of FCFL must be above 0"),
    ({"client_epsilons": (0.1, -1.0)}, "'client_epsilons' of FCFL must be numbers from 0 up"),
    ({"constraint": "odds"}, "'constraint' of FCFL must be one of dp, eo"),
    ({"client_epsilons": (0.5, 0.5), "epsilon": 0.2}, "'epsilon' of FCFL would change nothing"),
    ({"epsilon": None, "constraint": "eo"}, "'constraint' of FCFL would change nothing, since with epsilon none"),
    ({"epsilon": None, "sharpness": 5.0}, "'sharpness' of FCFL would change nothing, since with epsilon none"),
])  # fmt: skip
def test_settings_are_checked(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        FCFL(**settings)


def test_a_budget_for_each_client_must_be_given_for_each() -> None:
    with pytest.raises(UserError, match="has 3 numbers and there are 2 clients"):
        FCFL(client_epsilons=(0.1, 0.1, 0.1)).start(TASK, COUNTS)


# --- a whole run ------------------------------------------------------------------------------------------------------

Array = NDArray[np.float64]
Part = tuple[Array, NDArray[np.int64], NDArray[np.int64]]


def clients() -> list[Part]:
    draws = np.random.default_rng(2)
    parts = []
    for rows in (40, 25, 60):
        group, x = draws.integers(0, 2, rows), draws.normal(size=(rows, 3))
        x[:, 0] += 1.5 * group
        parts.append((x, (x[:, 0] + 0.3 * draws.normal(size=rows) > 0.5).astype(np.int64), group))
    return parts


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def measured(w: Array, part: Part) -> tuple[float, float, Array, Array]:
    """Loss, disparity and their gradients by the (2, features) matrix w, all by hand."""
    x, y, group = part
    z = x @ (w[1] - w[0])
    loss = float(np.log1p(np.exp(-z * (2 * y - 1))).mean())
    by_z = (sigmoid(z) - y) / len(y)
    score = sigmoid(10 * z)
    share = np.where(group == 1, 1 / (group == 1).sum(), -1 / (group == 0).sum())
    gap = float((share * score).sum())
    gap_by_z = np.sign(gap) * share * 10 * score * (1 - score)
    return loss, abs(gap), np.stack([-by_z @ x, by_z @ x]), np.stack([-gap_by_z @ x, gap_by_z @ x])


def softmax(values: Array, delta: float) -> Array:
    powers = np.exp((values - values.max()) / delta)
    return np.asarray(powers / powers.sum())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_run_of_stage_1_is_that_of_plain_numpy(engine: str) -> None:
    data = clients()
    federation = ffalm.Federation.from_arrays([(torch.from_numpy(x), y, g) for x, y, g in data])
    model = lambda: nn.Linear(3, 2, bias=False).double()  # noqa: E731
    common: dict[str, Any] = {"model": model, "engine": engine, "device": "cpu"}
    start = ffalm.simulate("fedavg", federation, rounds=1, lr=0.0, **common)
    w: Array = start.state_dict["weight"].numpy().copy()
    deltas, stages = [0.5, 0.5], set()
    for _ in range(30):
        told = [measured(w, part) for part in data]
        losses, gaps = (np.array([one[place] for one in told]) for place in (0, 1))
        weights = softmax(losses, deltas[0]), softmax(gaps, deltas[1])
        g_loss, g_gap = (sum(a * one[place] for a, one in zip(own, told, strict=True))
                         for own, place in zip(weights, (2, 3), strict=True))  # fmt: skip
        a, s, b = (float((one * other).sum()) for one, other in ((g_loss, g_loss), (g_loss, g_gap), (g_gap, g_gap)))
        violated = (-s / (a - s) if s < 0 else 0.0) if b >= s else 1.0
        first = float(a >= s) if gaps.max() <= 0.3 else violated
        stages.add(gaps.max() <= 0.3)
        for place, norm in enumerate((a**0.5, b**0.5)):
            if deltas[place] > 1e-4 and 0.1 * norm <= deltas[place]:
                deltas[place] *= 0.01
        w = w - 0.2 * (first * g_loss + (1 - first) * g_gap)
    found = ffalm.simulate(FCFL(epsilon=0.3), federation, rounds=30, lr=0.2, lr_step=100, **common)
    assert stages == {True, False}
    np.testing.assert_allclose(found.state_dict["weight"].numpy(), w, rtol=0, atol=1e-9)
