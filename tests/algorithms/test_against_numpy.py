"""A second implementation, in NumPy and by hand-written derivatives, that shares nothing with the package.

Round by round it must give the models and duals of `ffalm.simulate`: to 1e-10 in float64, and on one of the networks to
1e-4 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import ffalm
from ffalm.engines import Training
from ffalm.engines.sampling import batches

Array = NDArray[np.float64]
Client = tuple[Array, NDArray[np.int64], NDArray[np.int64]]

ROUNDS, STEPS, LR, LR_STEP, LR_DECAY, CLIP, FEATURES, HIDDEN = 6, 3, 0.5, 2, 0.5, 1.0, 4, 6


# --- data: uneven clients, the third of which has no row of group 1 ---------------------------------------------------


def make_clients() -> list[Client]:
    draws = np.random.default_rng(11)
    clients = []
    for rows in (23, 41, 17, 64):
        group = draws.integers(0, 2, rows)
        if rows == 17:
            group[:] = 0
        y = (draws.random(rows) < 0.25 + 0.4 * group).astype(np.int64)
        x = 1.5 * draws.normal(size=(rows, FEATURES)) + 1.2 * y[:, None] - 0.6 * group[:, None]
        clients.append((x, y, group))
    return clients


# --- models: parameters in torch's order, forward and backward by hand ------------------------------------------------


@dataclass
class Network:
    """Softmax regression (hidden=None) or one hidden layer."""

    hidden: str | None

    def start(self) -> list[Array]:
        draws = np.random.default_rng(5)
        if self.hidden is None:
            return [draws.normal(size=(2, FEATURES)), draws.normal(size=2)]
        return [
            draws.normal(size=(HIDDEN, FEATURES)), draws.normal(size=HIDDEN),
            draws.normal(size=(2, HIDDEN)), draws.normal(size=2),
        ]  # fmt: skip

    def losses(self, w: list[Array], x: Array, y: NDArray[np.int64]) -> tuple[Array, Callable[[Array], list[Array]]]:
        """Cross-entropy of each row, and the gradient of a weighted sum of them by every parameter."""
        if self.hidden is None:
            inner = x
        else:
            before = x @ w[0].T + w[1]
            inner = np.tanh(before) if self.hidden == "tanh" else np.maximum(before, 0)
        logits = inner @ w[-2].T + w[-1]
        shifted = logits - logits.max(1, keepdims=True)
        log_share = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        rows = np.arange(len(y))

        def backward(weight: Array) -> list[Array]:
            error = np.exp(log_share)
            error[rows, y] -= 1
            error *= weight[:, None]
            gradient = [error.T @ inner, error.sum(0)]
            if self.hidden is not None:
                slope = 1 - inner**2 if self.hidden == "tanh" else (before > 0).astype(float)
                deep = (error @ w[-2]) * slope
                gradient = [deep.T @ x, deep.sum(0), *gradient]
            return gradient

        return -log_share[rows, y], backward

    def module(self, dtype: torch.dtype) -> nn.Module:
        if self.hidden is None:
            module = nn.Sequential(nn.Linear(FEATURES, 2))
        else:
            module = nn.Sequential(
                nn.Linear(FEATURES, HIDDEN), nn.Tanh() if self.hidden == "tanh" else nn.ReLU(), nn.Linear(HIDDEN, 2)
            )
        module = module.to(dtype)
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), self.start(), strict=True):
                parameter.copy_(torch.tensor(value))
        return module


# --- methods: what a row weighs in a step, and how the duals move -----------------------------------------------------


def means_by_group(losses: Array, group: NDArray[np.int64]) -> list[float]:
    return [float(losses[group == s].mean()) for s in (0, 1)]


@dataclass
class FedAvgByHand:
    duals: list[float] = field(default_factory=list)

    def weights(self, losses: Array, group: NDArray[np.int64], round: int) -> Array:
        return np.full(len(losses), 1 / len(losses))

    def ascend(self, seen: list[tuple[float, list[tuple[Array, NDArray[np.int64]]]]], round: int) -> None:
        """`seen`: each client's share, and the losses and groups of its steps with those of the final model last."""


@dataclass
class FFALMByHand(FedAvgByHand):
    penalty: float = 2.0
    dual_lr: float = 2.0
    growth: float = 1.05
    penalty_growth: float = 1.0
    bound: float | None = None
    where: str = "full"
    duals: list[float] = field(default_factory=lambda: [0.0])

    def gap(self, losses: Array, group: NDArray[np.int64]) -> float:
        if len(set(group.tolist())) < 2:
            return 0.0
        mu = means_by_group(losses, group)
        return mu[0] - mu[1]

    def weights(self, losses: Array, group: NDArray[np.int64], round: int) -> Array:
        n, n0, n1 = len(losses), int((group == 0).sum()), int((group == 1).sum())
        if n0 == 0 or n1 == 0:
            return np.full(n, 1 / n)
        a = self.duals[0] + self.penalty * self.penalty_growth ** (round - 1) * self.gap(losses, group)
        return np.where(group == 0, 1 / n + a / n0, 1 / n - a / n1)

    def ascend(self, seen: list[tuple[float, list[tuple[Array, NDArray[np.int64]]]]], round: int) -> None:
        moves = 0.0
        for share, steps in seen:
            if self.where == "epoch_mean":
                told = np.concatenate([s[0] for s in steps[:-1]]), np.concatenate([s[1] for s in steps[:-1]])
            else:
                told = steps[-1] if self.where == "full" else steps[-2]
            moves += share * self.gap(*told)
        moved = self.duals[0] + self.dual_lr * self.growth ** (round - 1) * moves
        self.duals = [moved if self.bound is None else float(np.clip(moved, -self.bound, self.bound))]


@dataclass
class FPFLByHand(FedAvgByHand):
    penalty: float = 5.0
    dual_lr: float = 0.5
    form: str = "abs"
    tolerance: float = 0.0
    duals: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def distances(self, losses: Array, group: NDArray[np.int64]) -> list[tuple[float, float]]:
        """(d_s, derivative of d_s by L - mu_s) of both groups."""
        if len(set(group.tolist())) < 2:
            return [(0.0, 0.0), (0.0, 0.0)]
        found = []
        for mu in means_by_group(losses, group):
            difference = float(losses.mean()) - mu
            size = abs(difference) if self.form == "abs" else difference
            slope = np.sign(difference) if self.form == "abs" else 1.0
            found.append((size - self.tolerance, float(slope)) if size > self.tolerance else (0.0, 0.0))
        return found

    def weights(self, losses: Array, group: NDArray[np.int64], round: int) -> Array:
        n = len(losses)
        total = np.full(n, 1 / n)
        for s, (distance, slope) in enumerate(self.distances(losses, group)):
            if slope:
                member = group == s
                total = total + (self.duals[s] + self.penalty * distance) * slope * (1 / n - member / member.sum())
        return total

    def ascend(self, seen: list[tuple[float, list[tuple[Array, NDArray[np.int64]]]]], round: int) -> None:
        for s in (0, 1):
            self.duals[s] += self.dual_lr * sum(share * self.distances(*steps[-1])[s][0] for share, steps in seen)


# --- the federation ---------------------------------------------------------------------------------------------------


@dataclass
class Trace:
    model: list[Array]
    duals: list[list[float]]
    clipped: int
    unclipped: int


Batches = Callable[[int, int, int], list[NDArray[np.int64]]]


def by_hand(method: FedAvgByHand, network: Network, clients: list[Client], cut: Batches | None = None) -> Trace:
    w, sizes = network.start(), np.array([len(y) for _, y, _ in clients])
    trace = Trace(w, [], 0, 0)
    for round in range(1, ROUNDS + 1):
        lr = LR * LR_DECAY ** ((round - 1) // LR_STEP)
        models, seen = [], []
        for number, (x, y, group) in enumerate(clients):
            local = [value.copy() for value in w]
            steps = []
            for rows in [np.arange(len(y))] * STEPS if cut is None else cut(round, number, len(y)):
                losses, backward = network.losses(local, x[rows], y[rows])
                gradient = backward(method.weights(losses, group[rows], round))
                steps.append((losses, group[rows]))
                norm = float(np.sqrt(sum((value**2).sum() for value in gradient)))
                scale = min(1.0, CLIP / norm)
                trace.clipped, trace.unclipped = trace.clipped + (scale < 1), trace.unclipped + (scale == 1)
                local = [value - lr * scale * slope for value, slope in zip(local, gradient, strict=True)]
            steps.append((network.losses(local, x, y)[0], group))
            models.append(local)
            seen.append((float(sizes[number] / sizes.sum()), steps))
        w = [
            np.sum([size * model[i] for size, model in zip(sizes, models, strict=True)], 0) / sizes.sum()
            for i in range(len(w))
        ]
        method.ascend(seen, round)
        trace.duals.append(list(method.duals))
    trace.model = w
    return trace


METHODS: dict[str, tuple[Callable[[], FedAvgByHand], ffalm.Algorithm]] = {
    "FedAvg": (FedAvgByHand, ffalm.FedAvg()),
    "FFALM": (FFALMByHand, ffalm.FFALM()),
    "FFALM bounded": (lambda: FFALMByHand(bound=0.3), ffalm.FFALM(dual_bound=0.3)),
    "FFALM last batch": (lambda: FFALMByHand(where="last_batch"), ffalm.FFALM(dual_data="last_batch")),
    "FFALM epoch mean": (lambda: FFALMByHand(where="epoch_mean"), ffalm.FFALM(dual_data="epoch_mean")),
    "FFALM released code": (
        lambda: FFALMByHand(penalty=5.0, growth=1 / 1.05, penalty_growth=1.05, where="last_batch"),
        ffalm.FFALM.preset("released-code"),
    ),
    "FFALM safe": (lambda: FFALMByHand(dual_lr=0.2, growth=1.0, bound=1.0), ffalm.FFALM.preset("safe")),
    "FFALM from 0.4": (lambda: FFALMByHand(duals=[0.4]), ffalm.FFALM(dual_init=0.4)),
    "FPFL abs": (FPFLByHand, ffalm.FPFL()),
    "FPFL positive part": (lambda: FPFLByHand(form="positive_part"), ffalm.FPFL(constraint="positive_part")),
    "FPFL tolerant": (lambda: FPFLByHand(tolerance=0.05), ffalm.FPFL(tolerance=0.05)),
}
NETWORKS = {"softmax regression": Network(None), "tanh": Network("tanh"), "relu": Network("relu")}


def by_package(
    algorithm: ffalm.Algorithm, network: Network, clients: list[Client], dtype: torch.dtype, **more: Any
) -> ffalm.Result:
    run: dict[str, Any] = {
        "model": lambda: network.module(dtype), "rounds": ROUNDS, "batch_size": None, "local_steps": STEPS,
        "lr": LR, "lr_step": LR_STEP, "lr_decay": LR_DECAY, "clip": CLIP, "engine": "loop", "device": "cpu",
    }  # fmt: skip
    result: ffalm.Result = ffalm.simulate(algorithm, ffalm.Federation.from_arrays(clients), **{**run, **more})
    return result


def dual_path(result: ffalm.Result) -> list[list[float]]:
    return [record["duals"] if "duals" in record else [record["dual"]] for record in result.history]


def agree(result: ffalm.Result, trace: Trace, tolerance: float, with_duals: bool) -> None:
    for found, expected in zip(result.state_dict.values(), trace.model, strict=True):
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=tolerance)
    if with_duals:
        np.testing.assert_allclose(dual_path(result), trace.duals, rtol=0, atol=tolerance)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_six_rounds_agree(method: str, network: str) -> None:
    hand, algorithm = METHODS[method]
    trace = by_hand(hand(), NETWORKS[network], make_clients())
    exact = by_package(algorithm, NETWORKS[network], make_clients(), torch.float64)
    agree(exact, trace, 1e-10, with_duals=method != "FedAvg")
    if network == "relu":
        single = by_package(algorithm, NETWORKS[network], make_clients(), torch.float32)
        agree(single, trace, 1e-4, with_duals=method != "FedAvg")


@pytest.mark.parametrize("method", ["FedAvg", "FFALM", "FFALM last batch", "FFALM epoch mean", "FPFL abs"])
def test_shuffled_mini_batches_agree_when_both_are_cut_alike(method: str) -> None:
    """The cut is the package's; what is done with it is not. Some batches lack a group."""
    plan = Training(batch_size=7, local_epochs=2)

    def cut(round: int, client: int, rows: int) -> list[NDArray[np.int64]]:
        return [taken.numpy() for taken in batches(9, round, client, rows, plan)]

    hand, algorithm = METHODS[method]
    trace = by_hand(hand(), NETWORKS["tanh"], make_clients(), cut)
    more: dict[str, Any] = {"batch_size": 7, "local_epochs": 2, "local_steps": None, "seed": 9}
    result = by_package(algorithm, NETWORKS["tanh"], make_clients(), torch.float64, **more)
    agree(result, trace, 1e-10, with_duals=method != "FedAvg")


def test_the_runs_above_clip_in_some_steps_and_not_in_others_and_the_duals_move() -> None:
    """Without this the agreement could be that of two runs in which nothing happens."""
    trace = by_hand(FFALMByHand(), NETWORKS["relu"], make_clients())
    assert trace.clipped > 10
    assert trace.unclipped > 10
    duals = np.array(trace.duals)
    assert np.abs(duals).max() > 0.1
    bounded = by_hand(FFALMByHand(bound=0.3), NETWORKS["relu"], make_clients())
    assert np.abs(bounded.duals).max() == 0.3
    assert {len(set(group.tolist())) for _, _, group in make_clients()} == {1, 2}
