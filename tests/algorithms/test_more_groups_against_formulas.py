"""Three groups, rows without one, and three labels: methods against the objectives of their papers, written out anew.

Each reference is an objective of a client's rows, differentiated by autograd through a softmax regression, and what the
server does with numbers. Groups and labels are looped over, and nothing of the package's algorithms is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ffalm
from ffalm.engines.sampling import participants

ROUNDS, STEPS, LR, FEATURES, GROUPS = 5, 2, 0.3, 4, 3
UNKNOWN = -1


@dataclass
class Client:
    x: Tensor
    y: Tensor
    z: Tensor


def make_clients(labels: int) -> list[Client]:
    """The third client lacks group 1, the fourth group 0, and every one has rows of no known group."""
    draws = np.random.default_rng(3)
    found = []
    for rows, lacks in ((26, None), (41, None), (17, 1), (22, 0), (55, None)):
        z = draws.choice([group for group in (UNKNOWN, 0, 1, 2) if group != lacks], rows)
        y = np.clip((draws.random(rows) * labels + 0.4 * z - 0.3).astype(np.int64), 0, labels - 1)
        x = draws.normal(size=(rows, FEATURES)) + 0.8 * y[:, None] - 0.5 * z[:, None]
        found.append(Client(torch.tensor(x), torch.tensor(y), torch.tensor(z)))
    return found


class Method:
    """FedAvg; subclasses change what their method changes."""

    favourable: int

    def __init__(self, clients: list[Client], labels: int) -> None:
        self.clients, self.labels, self.favourable = clients, labels, 1
        self.sizes = np.array([len(one.y) for one in clients], dtype=float)
        self.n = float(self.sizes.sum())

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        return losses.mean()

    def client_weights(self) -> np.ndarray:
        return self.sizes

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        """Move the method's state."""

    def outputs(self, w: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        logs = (client.x @ w.T).log_softmax(-1)
        return -logs[torch.arange(len(client.y)), client.y], logs.exp()

    def run(self, w: Tensor, seed: int, participation: float) -> Tensor:
        for round in range(1, ROUNDS + 1):
            part = participants(seed, round, len(self.clients), participation)
            trained = [self.train(w, self.clients[i]) for i in part]
            weights = self.client_weights()[part]
            mean = sum((s * one for s, one in zip(weights / weights.sum(), trained, strict=True)), torch.zeros_like(w))
            self.after(part, w, trained, round)
            w = mean
        return w

    def train(self, w: Tensor, client: Client) -> Tensor:
        for _ in range(STEPS):
            w = w.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.objective(*self.outputs(w, client), client), w)
            w = w.detach() - LR * slope
        return w

    def rows(self, mask: Callable[[Client], Tensor]) -> float:
        """How many rows of the federation are in a set."""
        return float(sum(mask(one).sum() for one in self.clients))


def group_means(losses: Tensor, client: Client) -> dict[int, Tensor]:
    """mu_z of the groups that a client has."""
    return {z: losses[client.z == z].mean() for z in range(GROUPS) if bool((client.z == z).any())}


class GapsToGroupZero(Method):
    """FFALM: a dual for each gap mu_0 - mu_k; and FairALM, with the groups' losses in place of the square."""

    def __init__(self, clients: list[Client], labels: int, penalty: float, step: float, sums: bool = False) -> None:
        super().__init__(clients, labels)
        self.penalty, self.step, self.sums, self.duals = penalty, step, sums, [0.0] * GROUPS

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        found, means = losses.mean(), group_means(losses, client)
        for k in range(1, GROUPS):
            if 0 in means and k in means:
                gap = means[0] - means[k]
                found = found + self.duals[k] * gap
                found = found + (self.step * (means[0] + means[k]) if self.sums else self.penalty / 2 * gap**2)
        return found

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        total = self.sizes[part].sum()
        for i, model in zip(part, trained, strict=True):
            means = group_means(self.outputs(model, self.clients[i])[0], self.clients[i])
            for k in range(1, GROUPS):
                if 0 in means and k in means:
                    self.duals[k] += self.step * self.sizes[i] / total * float(means[0] - means[k])
        if self.sums:
            self.step /= 1.01


class FPFL(Method):
    def __init__(self, clients: list[Client], labels: int) -> None:
        super().__init__(clients, labels)
        self.duals = [0.0] * GROUPS

    def distances(self, losses: Tensor, client: Client) -> dict[int, Tensor]:
        known = losses[client.z != UNKNOWN].mean()
        return {z: torch.relu((known - mean).abs() - 0.01) for z, mean in group_means(losses, client).items()}

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        found = losses.mean()
        for z, distance in self.distances(losses, client).items():
            found = found + self.duals[z] * distance + 2.0 / 2 * distance**2
        return found

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        for i, model in zip(part, trained, strict=True):
            for z, distance in self.distances(self.outputs(model, self.clients[i])[0], self.clients[i]).items():
                self.duals[z] += 0.5 * self.sizes[i] / self.sizes[part].sum() * float(distance)


class FedFB(Method):
    """lambda_0z weighs rows of (0, z) by n lambda_0z / m_z; both lambdas of a group sum to 2 m_z / n."""

    def __init__(self, clients: list[Client], labels: int, metric: str) -> None:
        super().__init__(clients, labels)
        self.metric = metric
        self.of = [self.rows(lambda one, z=z: self.about(one, z)) for z in range(GROUPS)]  # type: ignore[misc]
        self.n = self.rows(lambda one: one.z != UNKNOWN)
        self.duals = [m / self.n for m in self.of]

    def about(self, client: Client, z: int) -> Tensor:
        return (client.z == z) & ((client.y == 1) | (self.metric == "dp"))

    def row_weights(self, client: Client) -> Tensor:
        found = torch.ones(len(client.y), dtype=torch.float64)
        for z in range(GROUPS):
            weight = self.n * self.duals[z] / self.of[z]
            if self.metric == "dp":
                found[(client.z == z) & (client.y == 0)] = weight
                found[(client.z == z) & (client.y == 1)] = 2 - weight
            else:
                found[(client.z == z) & (client.y == 1)] = weight
        return found

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        return (self.row_weights(client) * losses).mean()

    def client_weights(self) -> np.ndarray:
        return np.array([float(self.row_weights(one).sum()) for one in self.clients])

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        cells = np.zeros((2, 2, GROUPS))  # rows and summed losses by (label, group)
        for i in part:
            losses = self.outputs(sent, self.clients[i])[0]
            for y in (0, 1):
                for z in range(GROUPS):
                    of = (self.clients[i].y == y) & (self.clients[i].z == z)
                    cells[:, y, z] += float(of.sum()), float(losses[of].sum())
        m, loss = cells
        total = m.sum(0)
        gaps = []
        for z in range(1, GROUPS):
            if self.metric == "dp":
                of_zero = -loss[0, 0] / total[0] + loss[1, 0] / total[0] + m[0, 0] / total[0]
                gaps.append(of_zero + loss[0, z] / total[z] - loss[1, z] / total[z] - m[0, z] / total[z])
            else:
                gaps.append(loss[1, z] / m[1, z] - loss[1, 0] / m[1, 0])
        most = [2 * m / self.n if self.metric == "dp" else sum(self.of) / self.n for m in self.of]
        moves = [-sum(gaps), *gaps]
        self.duals = [
            float(np.clip(dual + 0.3 / np.sqrt(round) * move, 0, end))
            for dual, move, end in zip(self.duals, moves, most, strict=True)
        ]


class Rates(Method):
    """Methods that price rates: the objective is L + sum_c price_c r_c, with the federation's rows below each rate."""

    def __init__(self, clients: list[Client], labels: int, names: str) -> None:
        super().__init__(clients, labels)
        self.favourable = labels - 1
        self.sets: list[tuple[str, int | None]] = []  # score, label
        for name in names.split(","):
            if name == "odds":
                self.sets += [("favourable", y) for y in range(labels)]
            else:
                score = {"dp": "favourable", "eo": "favourable", "accuracy": "correct", "loss": "loss"}[name]
                self.sets.append((score, self.favourable if name == "eo" else None))
        self.below = {
            (s, z): self.rows(lambda one, y=y, z=z: self.among(one, y, z))  # type: ignore[misc]
            for s, (_, y) in enumerate(self.sets)
            for z in range(GROUPS)
        }
        self.price = dict.fromkeys(self.below, 0.0)

    def among(self, client: Client, y: int | None, z: int) -> Tensor:
        return (client.z == z) & ((client.y == y) | (y is None))

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        scores = {
            "favourable": chances[:, self.favourable],
            "correct": chances[torch.arange(len(client.y)), client.y],
            "loss": losses,
        }
        found = losses.mean()
        for (s, z), price in self.price.items():
            score, y = self.sets[s]
            own = scores[score][self.among(client, y, z)].sum() / self.below[s, z]  # the client's part of the rate
            found = found + price * own * self.n / len(client.y)
        return found

    def measured(self, part: list[int], w: Tensor) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        """Sums of hard scores, and rows, by (set, group) over the clients that take part."""
        sums, rows = dict.fromkeys(self.below, 0.0), dict.fromkeys(self.below, 0.0)
        for i in part:
            losses, chances = self.outputs(w, self.clients[i])
            hard = chances.argmax(-1)
            scores = {
                "favourable": (hard == self.favourable).double(),
                "correct": (hard == self.clients[i].y).double(),
                "loss": losses,
            }
            for s, z in self.below:
                of = self.among(self.clients[i], self.sets[s][1], z)
                sums[s, z] += float(scores[self.sets[s][0]][of].sum())
                rows[s, z] += float(of.sum())
        return sums, rows


class FedGFT(Rates):
    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        sums, _ = self.measured(part, sent)
        scale = self.n / self.sizes[part].sum()
        rates = {key: value * scale / self.below[key] for key, value in sums.items()}
        self.price = {(s, z): 2 * 0.3 * sum(rates[s, z] - rates[s, other] for other in range(GROUPS)) for s, z in rates}


class Lagrangian(Rates):
    """Tolerance 0.05, dual_lr 0.5, penalty 2, bound 0.3."""

    def __init__(self, clients: list[Client], labels: int, names: str) -> None:
        super().__init__(clients, labels, names)
        self.up, self.down = dict.fromkeys(self.below, 0.0), dict.fromkeys(self.below, 0.0)

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        sums, rows = self.measured(part, sent)
        for s in range(len(self.sets)):
            rates = [sums[s, z] / rows[s, z] for z in range(GROUPS)]
            middle = (max(rates) + min(rates)) / 2
            duals = []
            for z, rate in enumerate(rates):
                v = rate - middle
                self.up[s, z] = min(max(self.up[s, z] + 0.5 * (v - 0.025), 0.0), 0.3)
                self.down[s, z] = min(max(self.down[s, z] + 0.5 * (-v - 0.025), 0.0), 0.3)
                excess = v - min(max(v, -0.025), 0.025)
                duals.append(self.up[s, z] - self.down[s, z] + 2.0 * excess)
            for z, dual in enumerate(duals):
                scale = min(self.below[s, other] for other in range(GROUPS)) / self.n
                self.price[s, z] = scale * (dual - sum(duals) / GROUPS)


class Reductions(Rates):
    """Exponentiated gradient on both signs of r_z - r, tolerance 0.02, dual_lr 1, bound 2."""

    def __init__(self, clients: list[Client], labels: int, names: str) -> None:
        super().__init__(clients, labels, names)
        self.theta = {(sign, *key): 0.0 for key in self.below for sign in (1, -1)}

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        sums, rows = self.measured(part, sent)
        for sign, s, z in self.theta:
            overall = sum(sums[s, other] for other in range(GROUPS)) / sum(rows[s, other] for other in range(GROUPS))
            self.theta[sign, s, z] += sign * (sums[s, z] / rows[s, z] - overall) - 0.02
        below = 1 + sum(np.exp(one) for one in self.theta.values())
        duals = {key: 2.0 * (np.exp(self.theta[1, *key]) - np.exp(self.theta[-1, *key])) / below for key in self.below}
        for s in range(len(self.sets)):
            whole = sum(self.below[s, z] for z in range(GROUPS))
            together = sum(duals[s, z] for z in range(GROUPS))
            for z in range(GROUPS):  # sum_z dual_z (r_z - r), r being the mean of the r_z by their rows
                self.price[s, z] = float(duals[s, z] - together * self.below[s, z] / whole)


class FedMinMax(Method):
    def __init__(self, clients: list[Client], labels: int) -> None:
        super().__init__(clients, labels)
        self.of = np.array([self.rows(lambda one, z=z: one.z == z) for z in range(GROUPS)])  # type: ignore[misc]
        self.mixture = self.of / self.of.sum()

    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        """Rows of no known group keep the weight 1, and the others the mean 1 at the start."""
        weights = torch.ones(len(client.y), dtype=torch.float64)
        for z in range(GROUPS):
            weights[client.z == z] = float(self.mixture[z] * self.of.sum() / self.of[z])
        return (weights * losses).mean()

    def after(self, part: list[int], sent: Tensor, trained: list[Tensor], round: int) -> None:
        sums = np.zeros(GROUPS)
        for i in part:
            losses = self.outputs(sent, self.clients[i])[0]
            sums += [float(losses[self.clients[i].z == z].sum()) for z in range(GROUPS)]
        moved = self.mixture + 0.4 * sums * self.n / self.sizes[part].sum() / self.of
        low, high = moved.min() - 1, moved.max()  # onto the simplex, by bisection
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(moved - middle, 0).sum() > 1 else (low, middle)
        self.mixture = np.maximum(moved - high, 0)


class Reweighing(Method):
    def objective(self, losses: Tensor, chances: Tensor, client: Client) -> Tensor:
        known = self.rows(lambda one: one.z != UNKNOWN)
        found = losses[client.z == UNKNOWN].sum()
        for y in range(self.labels):
            for z in range(GROUPS):
                both = self.rows(lambda one, y=y, z=z: (one.y == y) & (one.z == z))  # type: ignore[misc]
                of_label = self.rows(lambda one, y=y: (one.y == y) & (one.z != UNKNOWN))  # type: ignore[misc]
                of_group = self.rows(lambda one, z=z: one.z == z)  # type: ignore[misc]
                weight = of_label * of_group / known / both if both else 1.0
                found = found + weight * losses[(client.y == y) & (client.z == z)].sum()
        return found / len(client.y)


Made = Callable[[list[Client], int], Method]
METHODS: dict[str, tuple[Made, ffalm.Algorithm, int]] = {
    "FFALM": (
        lambda c, n: GapsToGroupZero(c, n, 2.0, 0.8),
        ffalm.FFALM(penalty=2.0, dual_lr=0.8, dual_lr_growth=1.0),
        3,
    ),
    "FairALM": (lambda c, n: GapsToGroupZero(c, n, 0.0, 1.0, sums=True), ffalm.FairALM(), 3),
    "FPFL": (FPFL, ffalm.FPFL(penalty=2.0, tolerance=0.01), 3),
    "FedFB": (lambda c, n: FedFB(c, n, "dp"), ffalm.FedFB(), 2),
    "FedFB for equal opportunity": (lambda c, n: FedFB(c, n, "eo"), ffalm.FedFB(metric="eo"), 2),
    "FedMinMax": (FedMinMax, ffalm.FedMinMax(step=0.4), 3),
    "reweighing": (Reweighing, ffalm.Reweighing(), 3),
}
for constraint in ("dp", "eo", "odds", "accuracy", "loss", "dp,accuracy"):
    own: dict[str, tuple[Made, ffalm.Algorithm, int]] = {
        f"FedGFT on {constraint}": (
            lambda c, n, names=constraint: FedGFT(c, n, names),  # type: ignore[misc]
            ffalm.FedGFT(constraint, penalty=0.3),
            3,
        ),
        f"Lagrangian on {constraint}": (
            lambda c, n, names=constraint: Lagrangian(c, n, names),  # type: ignore[misc]
            ffalm.Lagrangian(constraint, tolerance=0.05, dual_bound=0.3, measured="train"),
            3,
        ),
        f"reductions on {constraint}": (
            lambda c, n, names=constraint: Reductions(c, n, names),  # type: ignore[misc]
            ffalm.Reductions(constraint, measured="train", tolerance=0.02, dual_lr=1.0),
            3,
        ),
    }
    METHODS |= own


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("method", METHODS)
def test_five_rounds_agree(method: str, participation: float) -> None:
    made, algorithm, labels = METHODS[method]
    clients = make_clients(labels)
    start = torch.from_numpy(np.random.default_rng(8).normal(size=(labels, FEATURES)))
    server = made(clients, labels)
    expected = server.run(start, 4, participation)

    def model() -> nn.Module:
        linear = nn.Linear(FEATURES, labels, bias=False).double()
        linear.weight.data = start.clone()
        return linear

    settings: dict[str, Any] = {"rounds": ROUNDS, "batch_size": None, "local_steps": STEPS, "lr": LR, "clip": None}
    owned = ffalm.Federation.from_arrays(
        [(one.x.numpy(), one.y.numpy(), one.z.numpy()) for one in clients],
        favourable=server.favourable,
        unknown=UNKNOWN,
    )
    found = ffalm.simulate(
        algorithm, owned, model=model, seed=4, participation=participation, engine="loop", device="cpu", **settings
    )
    np.testing.assert_allclose(found.state_dict["weight"].numpy(), expected.numpy(), rtol=0, atol=1e-10)
    plain = Method(clients, labels).run(start, 4, participation)
    assert float((plain - expected).abs().max()) > 1e-4, "the method must have done something"
