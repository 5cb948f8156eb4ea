"""FedProx, SCAFFOLD, FedAvgM, FedAdam, q-FedAvg and client-side optimizers against an independent simulation in numpy.

The reference follows the published pseudo-code with full batches on softmax regression, so that every number can be
followed by hand; clients differ in size and one sits rounds out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import ffalm
from ffalm.algorithms import QFFL, SCAFFOLD, Algorithm, FedAdam, FedAvgM, FedProx
from ffalm.engines.sampling import participants

Array = NDArray[np.float64]

ROUNDS, STEPS, LR, FEATURES = 4, 3, 0.3, 4


def clients() -> list[tuple[Array, NDArray[np.int64], NDArray[np.int64]]]:
    draws = np.random.default_rng(5)
    sizes = (12, 20, 7)
    return [
        (draws.normal(size=(rows, FEATURES)), draws.integers(0, 2, rows), draws.integers(0, 2, rows)) for rows in sizes
    ]


def gradient(w: Array, x: Array, y: NDArray[np.int64], clip: float | None) -> Array:
    """Of the mean softmax cross-entropy by a (2, features) matrix, its norm clipped."""
    logits = x @ w.T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    found: Array = shares.T @ x / len(y)
    norm = float(np.linalg.norm(found))
    return found if clip is None or norm <= clip else found * clip / norm


class Server:
    """FedAvg in numpy; subclasses change what their method changes."""

    def __init__(self, w: Array, count: int) -> None:
        self.w, self.count = w, count

    def local(self, client: int, x: Array, y: NDArray[np.int64], clip: float | None) -> Array:
        self.received(client, x, y)
        w = self.w.copy()
        for _ in range(STEPS):
            w = w - LR * (gradient(w, x, y, clip) + self.extra(client, w))
        self.trained(client, w)
        return w

    def received(self, client: int, x: Array, y: NDArray[np.int64]) -> None: ...

    def extra(self, client: int, w: Array) -> Array:
        return np.zeros_like(w)

    def trained(self, client: int, w: Array) -> None: ...

    def aggregate(self, mean: Array, present: dict[int, float], share: float) -> Array:
        return mean


class Prox(Server):
    def extra(self, client: int, w: Array) -> Array:
        return 0.7 * (w - self.w)


class Scaffold(Server):
    def __init__(self, w: Array, count: int) -> None:
        super().__init__(w, count)
        self.c, self.own, self.change = np.zeros_like(w), [np.zeros_like(w) for _ in range(count)], {}  # type: ignore[var-annotated]

    def extra(self, client: int, w: Array) -> Array:
        return self.c - self.own[client]

    def trained(self, client: int, w: Array) -> None:
        after = self.own[client] - self.c + (self.w - w) / (STEPS * LR)
        self.change[client] = after - self.own[client]
        self.own[client] = after

    def aggregate(self, mean: Array, present: dict[int, float], share: float) -> Array:
        self.c = self.c + share * sum(weight * self.change[client] for client, weight in present.items())
        return mean


class Momentum(Server):
    velocity: Array | float = 0.0

    def aggregate(self, mean: Array, present: dict[int, float], share: float) -> Array:
        self.velocity = 0.8 * self.velocity + (self.w - mean)
        return np.asarray(self.w - 0.6 * self.velocity)


class Adaptive(Server):
    m: Array | float = 0.0
    v: Array | float = 0.02**2

    def aggregate(self, mean: Array, present: dict[int, float], share: float) -> Array:
        change = mean - self.w
        self.m = 0.9 * self.m + 0.1 * change
        self.v = 0.99 * self.v + 0.01 * change**2
        return np.asarray(self.w + 0.1 * self.m / (np.sqrt(self.v) + 0.02))


class FairLosses(Server):
    """q = 2, L = 1 / LR; the sums over clients weighted by their rows."""

    def __init__(self, w: Array, count: int) -> None:
        super().__init__(w, count)
        self.losses, self.own = [0.0] * count, [w] * count

    def received(self, client: int, x: Array, y: NDArray[np.int64]) -> None:
        logits = x @ self.w.T
        own = logits[np.arange(len(y)), y]
        self.losses[client] = float((np.log(np.exp(logits).sum(1)) - own).mean())

    def trained(self, client: int, w: Array) -> None:
        self.own[client] = w

    def aggregate(self, mean: Array, present: dict[int, float], share: float) -> Array:
        total, curvature = np.zeros_like(self.w), 0.0
        for client, weight in present.items():
            step, loss = (self.w - self.own[client]) / LR, self.losses[client]
            total += weight * loss**2 * step
            curvature += weight * (2 * loss * float((step**2).sum()) + loss**2 / LR)
        return np.asarray(self.w - total / curvature)


METHODS: dict[str, tuple[Algorithm, type[Server]]] = {
    "FedProx": (FedProx(mu=0.7), Prox),
    "SCAFFOLD": (SCAFFOLD(), Scaffold),
    "FedAvgM": (FedAvgM(momentum=0.8, server_lr=0.6), Momentum),
    "q-FedAvg": (QFFL(q=2.0), FairLosses),
    "FedAdam": (FedAdam(server_lr=0.1, tau=0.02), Adaptive),
}


def linear() -> nn.Module:
    return nn.Linear(FEATURES, 2, bias=False).double()


def started() -> Array:
    """The model that a run with seed 0 starts from."""
    data = [(torch.from_numpy(x), y, g) for x, y, g in clients()]
    still = ffalm.simulate(
        "fedavg", ffalm.Federation.from_arrays(data), model=linear, rounds=1, lr=0.0, engine="loop", device="cpu"
    )
    found: Array = still.state_dict["weight"].numpy()
    return found


def simulated(algorithm: Algorithm, engine: str, **settings: Any) -> Array:
    data = [(torch.from_numpy(x), y, g) for x, y, g in clients()]
    common: dict[str, Any] = {"rounds": ROUNDS, "local_steps": STEPS, "batch_size": None, "lr": LR, "model": linear}
    result = ffalm.simulate(
        algorithm, ffalm.Federation.from_arrays(data), engine=engine, device="cpu", **{**common, **settings}
    )
    found: Array = result.state_dict["weight"].numpy()
    return found


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("method", METHODS)
def test_the_published_pseudo_code_gives_the_same_model(
    method: str, participation: float, clip: float | None, engine: str
) -> None:
    algorithm, kind = METHODS[method]
    data = clients()
    server = kind(started(), len(data))
    for number in range(1, ROUNDS + 1):
        chosen = participants(0, number, len(data), participation)
        rows = sum(len(data[client][1]) for client in chosen)
        present = {client: len(data[client][1]) / rows for client in chosen}
        trained = {client: server.local(client, data[client][0], data[client][1], clip) for client in chosen}
        mean = np.asarray(sum(present[client] * trained[client] for client in chosen))
        server.w = server.aggregate(mean, present, rows / sum(len(y) for _, y, _ in data))
    found = simulated(algorithm, engine, clip=clip, participation=participation)
    np.testing.assert_allclose(found, server.w, rtol=0, atol=1e-12)


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    "weight decay": ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, LR, weight_decay=0.1)),
    "both": (
        {"momentum": 0.5, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, LR, momentum=0.5, weight_decay=0.1),
    ),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, LR)),
    "adam with decay": (
        {"optimizer": "adam", "weight_decay": 0.1},
        lambda p: torch.optim.Adam(p, LR, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_client_optimizers_are_those_of_torch_started_anew_each_round(optimizer: str, engine: str) -> None:
    settings, make = OPTIMIZERS[optimizer]
    data = clients()
    w = torch.from_numpy(started().copy())
    for _ in range(ROUNDS):
        trained = []
        for x, y, _group in data:
            own = w.clone().requires_grad_()
            local = make([own])
            for _ in range(STEPS):
                local.zero_grad()
                loss = nn.functional.cross_entropy(torch.from_numpy(x) @ own.T, torch.from_numpy(y))
                loss.backward()  # type: ignore[no-untyped-call]
                local.step()
            trained.append(own.detach() * len(y))
        w = torch.stack(trained).sum(0) / sum(len(y) for _, y, _ in data)
    found = simulated(ffalm.FedAvg(), engine, clip=None, **settings)
    np.testing.assert_allclose(found, w.numpy(), rtol=0, atol=1e-12)


def test_no_proximal_term_no_power_of_losses_and_no_server_momentum_are_fedavg() -> None:
    plain = simulated(ffalm.FedAvg(), "loop")
    np.testing.assert_allclose(simulated(FedProx(mu=0.0), "loop"), plain, rtol=0, atol=1e-15)
    np.testing.assert_allclose(simulated(QFFL(q=0.0), "loop"), plain, rtol=0, atol=1e-15)
    np.testing.assert_allclose(simulated(FedAvgM(momentum=0.0, server_lr=1.0), "loop"), plain, rtol=0, atol=1e-15)
