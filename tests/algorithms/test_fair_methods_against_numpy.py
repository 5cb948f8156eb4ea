"""Methods that weigh rows, groups, clients or scores against an independent simulation in numpy.

The reference follows the published formulas group by group, with full batches on softmax regression. Clients differ in
size, one lacks a group, and some sit rounds out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import ffalm
from ffalm.engines.sampling import participants

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

ROUNDS, STEPS, LR, FEATURES = 5, 2, 0.4, 4


@dataclass
class Client:
    x: Array
    y: Labels
    z: Labels


def make_clients() -> list[Client]:
    draws = np.random.default_rng(3)
    found = []
    for rows in (14, 22, 9, 31):
        z = np.zeros(rows, dtype=np.int64) if rows == 9 else draws.integers(0, 2, rows)
        y = (draws.random(rows) < 0.3 + 0.4 * z).astype(np.int64)
        found.append(Client(draws.normal(size=(rows, FEATURES)) + 0.8 * y[:, None] - 0.5 * z[:, None], y, z))
    return found


def probabilities(w: Array, x: Array) -> Array:
    logits = x @ w.T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def losses_of(w: Array, client: Client) -> Array:
    return np.asarray(-np.log(probabilities(w, client.x)[np.arange(len(client.y)), client.y]))


def cell(client: Client, y: int | None, z: int) -> NDArray[np.bool_]:
    return np.asarray(client.z == z if y is None else (client.z == z) & (client.y == y))


def simplex(values: Array) -> Array:
    """By bisection on what is taken off each entry."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > 1 else (low, middle)
    return np.asarray(np.maximum(values - high, 0))


class Server:
    """FedAvg; subclasses change what their method changes."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self.sizes = np.array([len(one.y) for one in clients], dtype=float)
        self.rows = {(y, z): float(sum(cell(one, y, z).sum() for one in clients)) for y in (0, 1) for z in (0, 1)}
        self.n = float(sum(self.rows.values()))

    def of_group(self, z: int) -> float:
        return self.rows[0, z] + self.rows[1, z]

    def row_weights(self, client: Client) -> Array:
        """What a row's loss counts in the mean."""
        return np.ones(len(client.y))

    def prices(self, client: Client) -> Array:
        """What a row's probability of the favourable label costs."""
        return np.zeros(len(client.y))

    def client_weights(self) -> Array:
        return self.sizes

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        """Move the method's state."""

    def train(self, w: Array, client: Client) -> Array:
        for _ in range(STEPS):
            p = probabilities(w, client.x)
            error = p.copy()
            error[np.arange(len(client.y)), client.y] -= 1
            error *= self.row_weights(client)[:, None]
            pull = self.prices(client) * p[:, 1] * p[:, 0]
            error += np.stack([-pull, pull], 1)
            w = w - LR * error.T @ client.x / len(client.y)
        return w

    def run(self, w: Array, seed: int, participation: float) -> Array:
        for round in range(1, ROUNDS + 1):
            part = participants(seed, round, len(self.clients), participation)
            trained = [self.train(w, self.clients[i]) for i in part]
            weights = self.client_weights()[part]
            mean = sum(share * model for share, model in zip(weights / weights.sum(), trained, strict=True))
            self.after(part, w, trained, round)
            w = np.asarray(mean)
        return w

    def sums(self, part: list[int], w: Array, y: int | None, z: int) -> tuple[float, float, float]:
        """Rows, summed losses and favourable predictions of a cell, over the clients that take part."""
        rows = losses = hits = 0.0
        for i in part:
            of = cell(self.clients[i], y, z)
            rows, losses = rows + of.sum(), losses + losses_of(w, self.clients[i])[of].sum()
            hits += (probabilities(w, self.clients[i].x)[of, 1] > 0.5).sum()
        return float(rows), float(losses), float(hits)


class FedFB(Server):
    def __init__(self, clients: list[Client], metric: str = "dp", normalised: bool = False) -> None:
        super().__init__(clients)
        self.metric, self.normalised = metric, normalised
        self.m = [self.of_group(z) if metric == "dp" else self.rows[1, z] for z in (0, 1)]
        self.duals = [m / self.n for m in self.m]

    def row_weights(self, client: Client) -> Array:
        found = np.ones(len(client.y))
        for z in (0, 1):
            weight = self.n * self.duals[z] / self.m[z]
            if self.metric == "dp":
                found[cell(client, 0, z)], found[cell(client, 1, z)] = weight, 2 - weight
            else:
                found[cell(client, 1, z)] = weight
        return found

    def client_weights(self) -> Array:
        return np.array([self.row_weights(one).sum() for one in self.clients])

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        (m00, l00, _), (m10, l10, _) = self.sums(part, sent, 0, 0), self.sums(part, sent, 1, 0)
        (m01, l01, _), (m11, l11, _) = self.sums(part, sent, 0, 1), self.sums(part, sent, 1, 1)
        if self.metric == "dp":
            m0, m1 = m00 + m10, m01 + m11
            gap = -l00 / m0 + l10 / m0 + l01 / m1 - l11 / m1 + m00 / m0 - m01 / m1
            bounds = [2 * m / self.n for m in self.m]
        else:
            gap, bounds = l11 / m11 - l10 / m10, [sum(self.m) / self.n] * 2
        step = 0.3 / np.sqrt(round) * (np.sign(gap) if self.normalised else gap)
        self.duals = [float(np.clip(self.duals[z] + sign * step, 0, bounds[z])) for z, sign in ((0, -1), (1, 1))]


class FairALM(Server):
    def __init__(self, clients: list[Client], label: int | None = None) -> None:
        super().__init__(clients)
        self.label, self.dual, self.step = label, 0.0, 1.0

    def has_both(self, client: Client) -> bool:
        return bool(cell(client, self.label, 0).any() and cell(client, self.label, 1).any())

    def row_weights(self, client: Client) -> Array:
        found = np.ones(len(client.y))
        if self.has_both(client):
            for z, price in ((0, self.step + self.dual), (1, self.step - self.dual)):
                of = cell(client, self.label, z)
                found[of] += price * len(client.y) / of.sum()
        return found

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        move, total = 0.0, self.sizes[part].sum()
        for i, model in zip(part, trained, strict=True):
            one = self.clients[i]
            if self.has_both(one):
                losses = losses_of(model, one)
                mu = [losses[cell(one, self.label, z)].mean() for z in (0, 1)]
                move += self.sizes[i] / total * (mu[0] - mu[1])
        self.dual += self.step * move
        self.step /= 1.01


class FedGFT(Server):
    def __init__(self, clients: list[Client], label: int | None = None, penalty: float = 1.0) -> None:
        super().__init__(clients)
        self.label, self.penalty, self.gap = label, penalty, 0.0
        self.m = [self.of_group(z) if label is None else self.rows[label, z] for z in (0, 1)]

    def slope(self) -> float:
        """The derivative of penalty * F^2 by F."""
        return 2 * self.penalty * self.gap

    def prices(self, client: Client) -> Array:
        found = np.zeros(len(client.y))
        for z, sign in ((0, 1), (1, -1)):
            found[cell(client, self.label, z)] = sign * self.slope() * self.n / self.m[z]
        return found

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        scale = self.n / self.sizes[part].sum()
        rates = [self.sums(part, sent, self.label, z)[2] * scale / self.m[z] for z in (0, 1)]
        self.gap = rates[0] - rates[1]


class FixedMultiplier(FedGFT):
    def slope(self) -> float:
        return -0.7


class ExponentiatedGradient(FedGFT):
    def __init__(self, clients: list[Client], label: int | None = None) -> None:
        super().__init__(clients, label)
        self.theta = np.zeros((2, 2))  # sign, group
        self.duals = np.zeros(2)

    def prices(self, client: Client) -> Array:
        """The derivative of sum_z dual_z (r_z - r) by each row's score, times n."""
        found = np.zeros(len(client.y))
        for z in (0, 1):
            found[cell(client, self.label, z)] = self.n * (self.duals[z] / self.m[z] - self.duals.sum() / sum(self.m))
        return found

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        sums = [self.sums(part, sent, self.label, z) for z in (0, 1)]
        overall = sum(one[2] for one in sums) / sum(one[0] for one in sums)
        for z, (rows, _, hits) in enumerate(sums):
            self.theta[0, z] += hits / rows - overall - 0.02
            self.theta[1, z] += overall - hits / rows - 0.02
        grown = np.exp(self.theta)
        multipliers = 2.0 * grown / (1 + grown.sum())
        self.duals = multipliers[0] - multipliers[1]


class FedMinMax(Server):
    def __init__(self, clients: list[Client]) -> None:
        super().__init__(clients)
        self.shares = np.array([self.of_group(z) / self.n for z in (0, 1)])
        self.mixture = self.shares.copy()

    def row_weights(self, client: Client) -> Array:
        return np.asarray((self.mixture / self.shares)[client.z])

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        sums = np.array([self.sums(part, sent, None, z)[1] for z in (0, 1)])
        self.mixture = simplex(self.mixture + 0.4 * sums / self.sizes[part].sum() / self.shares)


class AFL(Server):
    def __init__(self, clients: list[Client]) -> None:
        super().__init__(clients)
        self.mixture = self.sizes / self.n

    def client_weights(self) -> Array:
        return self.mixture

    def after(self, part: list[int], sent: Array, trained: list[Array], round: int) -> None:
        losses = np.array([losses_of(sent, one).mean() if i in part else 0.0 for i, one in enumerate(self.clients)])
        self.mixture = simplex(self.mixture + 0.1 * losses)


class Reweighing(Server):
    def __init__(self, clients: list[Client], local: bool) -> None:
        super().__init__(clients)
        self.local = local

    def row_weights(self, client: Client) -> Array:
        known = [client] if self.local else self.clients
        y, z = np.concatenate([one.y for one in known]), np.concatenate([one.z for one in known])
        shares = {(a, b): (y == a).mean() * (z == b).mean() / max(((y == a) & (z == b)).mean(), 1e-9)
                  for a in (0, 1) for b in (0, 1)}  # fmt: skip
        return np.array([shares[a, b] for a, b in zip(client.y.tolist(), client.z.tolist(), strict=True)])


METHODS: dict[str, tuple[Callable[[list[Client]], Server], ffalm.Algorithm]] = {
    "FedFB": (FedFB, ffalm.FedFB()),
    "FedFB for equal opportunity": (lambda c: FedFB(c, "eo"), ffalm.FedFB(metric="eo")),
    "FedFB with normalised steps": (lambda c: FedFB(c, "dp", True), ffalm.FedFB(normalised_step=True)),
    "FairALM": (FairALM, ffalm.FairALM()),
    "FairALM on favourable rows": (lambda c: FairALM(c, 1), ffalm.FairALM(labels="favourable")),
    "FedGFT": (lambda c: FedGFT(c, None, 0.3), ffalm.FedGFT(penalty=0.3)),
    "FedGFT for equal opportunity": (lambda c: FedGFT(c, 1), ffalm.FedGFT("eo", penalty=1.0)),
    "FedMinMax": (FedMinMax, ffalm.FedMinMax(step=0.4)),
    "AFL": (AFL, ffalm.AFL()),
    "global reweighing": (lambda c: Reweighing(c, False), ffalm.Reweighing()),
    "local reweighing": (lambda c: Reweighing(c, True), ffalm.Reweighing("local")),
    "reductions": (ExponentiatedGradient, ffalm.Reductions(measured="train", tolerance=0.02, dual_lr=1.0)),
    "reductions for equal opportunity": (
        lambda c: ExponentiatedGradient(c, 1),
        ffalm.Reductions("eo", measured="train", tolerance=0.02, dual_lr=1.0),
    ),
    "reductions at a point of the grid": (FixedMultiplier, ffalm.Reductions(multiplier=-0.7)),
}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_five_rounds_agree(method: str, participation: float) -> None:
    by_hand, algorithm = METHODS[method]
    start = np.random.default_rng(8).normal(size=(2, FEATURES))
    server = by_hand(make_clients())
    expected = server.run(start, 4, participation)

    def model() -> nn.Module:
        made = nn.Linear(FEATURES, 2, bias=False).double()
        made.weight.data = torch.tensor(start)
        return made

    settings: dict[str, Any] = {"rounds": ROUNDS, "batch_size": None, "local_steps": STEPS, "lr": LR, "clip": None}
    owned = ffalm.Federation.from_arrays([(one.x, one.y, one.z) for one in make_clients()])
    found = ffalm.simulate(
        algorithm, owned, model=model, seed=4, participation=participation, engine="loop", device="cpu", **settings
    )
    np.testing.assert_allclose(found.state_dict["weight"].numpy(), expected, rtol=0, atol=1e-10)
    plain = Server(make_clients()).run(start, 4, participation)
    assert np.abs(plain - expected).max() > 1e-3, "the method must have done something"
