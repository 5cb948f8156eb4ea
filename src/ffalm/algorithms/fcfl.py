"""FCFL: the worst client's loss under a budget for every client's disparity, then along the Pareto front.

Cui et al., NeurIPS 2021. Clients do not train: each round a client uploads its loss l_k, a smooth disparity g_k and the
gradients of both on all its rows, at the model that it received. With z the log-odds of the favourable label,

    g_k = max_s r_s - min_s r_s,    r_s = mean of sigmoid(sharpness z) over the rows of group s   (eo: those with Y = 1)

which for two groups is |r_1 - r_0|, as published.

Stage 1, constrained min-max. With a^l = softmax((l - max l) / delta_l), likewise a^g of g_k - epsilon_k,
G_l = sum_k a^l_k grad l_k and G_g = sum_k a^g_k grad g_k, the server steps along d = alpha_1 G_l + alpha_2 G_g, where
alpha on the simplex maximises <d, G_l> if every client is within its budget, and else <d, G_g> subject to
<d, G_l> >= 0. A delta shrinks to a hundredth once a tenth of its gradient's norm is no more than it.

Stage 2, constrained Pareto. alpha over grad l_1, ..., grad l_K and G_g (0 where all budgets are kept) maximises
<d, mean_k grad l_k> subject to <d, v> >= 0 for each of them: no client's loss and no active disparity rises.

    w <- w - lr d
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import left_at_defaults
from ffalm.algorithms.contract import Algorithm, Batch, RoundReport, State, Task, scalar
from ffalm.algorithms.pareto import constrained_direction, pareto_direction, smooth_max_weights
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.errors import require
from ffalm.fairness import group_means, masked_mean
from ffalm.settings import setting

_LEAST_DELTA, _NORM_SHARE, _SHRINK = 1e-4, 0.1, 0.01  # when a delta shrinks, and by how much


@register
@dataclass(frozen=True)
class FCFL(Algorithm):
    """Lowers the worst client's loss while every client's disparity is within `epsilon`.

    After `minimax_rounds`, no client's loss may rise either: a step to the Pareto front.
    """

    name = "fcfl"
    title = "FCFL"
    paper = (
        "Cui et al., Addressing Algorithmic Disparity and Performance Inconsistency in Federated Learning, NeurIPS 2021"
    )
    limits = (
        "One full-batch gradient step a round, of size lr: it needs hundreds of rounds and an lr of about 0.01 to 0.1, "
        "since the disparity is steep, with lr_decay = 1 (by default the lr halves every 50 rounds); stage 2 begins "
        "after minimax_rounds. Batch size, local epochs and steps, clip, optimizer, momentum and weight decay have no "
        "effect. The server sees each client's gradients: no secure aggregation or privacy."
    )
    uploads = ("loss_gradient", "disparity_gradient")
    gradients = uploads
    products = uploads
    server_settings = ("epsilon", "client_epsilons", "minimax_rounds", "delta")
    remedies = "a smaller lr or sharpness"

    epsilon: float | None = setting(0.1, "Largest disparity of a client; none for no constraint.", least=0)
    constraint: Literal["dp", "eo"] = setting("dp", "Disparity: demographic parity or equal opportunity.")
    minimax_rounds: int = setting(800, "Rounds of stage 1; those after it are of stage 2.", least=0)
    delta: float = setting(0.5, "Width of the smooth maximum over clients in round 1.", above=0)
    sharpness: float = setting(10.0, "Factor of the logit in the smooth rate.", above=0)
    client_epsilons: tuple[float, ...] = setting((), "One epsilon for each client, instead of the same for all.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            all(0 <= value < torch.inf for value in self.client_epsilons),
            f"The setting 'client_epsilons' of FCFL must be numbers from 0 up; got {list(self.client_epsilons)}.",
        )
        if self.client_epsilons:
            left_at_defaults(self, ["epsilon"], "client_epsilons gives each client its own")
        elif self.epsilon is None:
            left_at_defaults(self, ["constraint", "sharpness"], "with epsilon none there is no constraint")

    def start(self, task: Task, counts: Tensor) -> State:
        """The deltas, and no weights yet of the clients' two gradients."""
        clients, given = counts.shape[-3], len(self.client_epsilons)
        require(
            given in (0, clients),
            f"The setting 'client_epsilons' of FCFL has {given} numbers and there are {clients} clients: give one for "
            "each, in their order.",
        )
        weights = torch.zeros(*counts.shape[:-3], len(self.gradients), clients, dtype=torch.float64)
        deltas = scalar(self.delta, counts)
        return {"loss_delta": deltas, "disparity_delta": deltas.clone(), "gradient_weights": weights}

    def by_outputs(self, task: Task) -> bool:
        """The logit of the favourable label cannot be had from a loss near 0 without losing digits."""
        return True

    def objectives(self, batch: Batch, state: State) -> Tensor:
        """The mean loss, and the disparity of the compared groups; 0 if fewer than two have rows."""
        assert batch.outputs is not None
        favourable, task = batch.task.favourable, batch.task
        others = [label for label in range(task.labels) if label != favourable]
        logit = batch.outputs[..., favourable] - batch.outputs[..., others].logsumexp(-1)
        counted = batch.mask.bool()
        if self.constraint == "eo":
            counted = counted & (batch.labels == favourable)
        means, present = group_means((self.sharpness * logit).sigmoid(), batch.groups, counted, task.compared)
        highest = means.masked_fill(~present, -torch.inf).amax(-1)
        lowest = means.masked_fill(~present, torch.inf).amin(-1)
        gap = torch.where(present.sum(-1) > 1, highest - lowest, torch.zeros_like(highest))
        return torch.stack([masked_mean(batch.losses, batch.mask), gap], -1)

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """Weigh the clients' gradients by the stage that this round belongs to."""
        assert report.values is not None
        assert report.products is not None
        part = report.taking_part
        losses, gaps = report.values[part].unbind(-1)
        excess = gaps - self._budgets(report)[part]
        stage = self._minimax if report.round <= self.minimax_rounds else self._pareto
        products = report.products[:, part][..., part]
        weights, deltas = stage(losses, excess, products, state)
        every = torch.zeros_like(state["gradient_weights"])
        every[:, part] = weights
        return report.shares(), {**deltas, "gradient_weights": every}

    def weigh_uploads(self, weights: Tensor, state: State) -> dict[str, Tensor]:
        """As `update` chose."""
        return dict(zip(self.uploads, state["gradient_weights"].unbind(), strict=True))

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """w - lr d."""
        return model - report.lr * (uploads["loss_gradient"] + uploads["disparity_gradient"]), vectors

    @property
    def _constrained(self) -> bool:
        return self.epsilon is not None or bool(self.client_epsilons)

    def _budgets(self, report: RoundReport) -> Tensor:
        """epsilon_k; without a constraint 1, which no disparity exceeds."""
        if self.client_epsilons:
            return torch.tensor(self.client_epsilons, dtype=torch.float64)
        return torch.full(report.sizes.shape, 1.0 if self.epsilon is None else self.epsilon, dtype=torch.float64)

    def _minimax(self, losses: Tensor, excess: Tensor, products: Tensor, state: State) -> tuple[Tensor, State]:
        """Stage 1: the weights of both gradients, (gradient, client), and the deltas of the next round."""
        smooth = torch.stack([
            smooth_max_weights(values, float(state[name]))
            for values, name in ((losses, "loss_delta"), (excess, "disparity_delta"))
        ])  # fmt: skip
        joined = torch.einsum("ai,aibj,bj->ab", smooth, products, smooth)
        alpha = constrained_direction(joined, bool(excess.max() <= 0)) if self._constrained else (1.0, 0.0)
        norms = joined.diagonal().sqrt()
        deltas = {name: _shrunk(state[name], norms[place])
                  for place, name in enumerate(("loss_delta", "disparity_delta"))}  # fmt: skip
        return smooth * torch.tensor(alpha, dtype=torch.float64).unsqueeze(-1), deltas

    def _pareto(self, losses: Tensor, excess: Tensor, products: Tensor, state: State) -> tuple[Tensor, State]:
        """Stage 2: likewise; the deltas stay."""
        clients, active = len(losses), self._constrained and bool(excess.max() >= 0)
        worst = smooth_max_weights(excess, float(state["disparity_delta"])) * active
        vectors = torch.zeros(clients + 1, 2, clients, dtype=torch.float64)  # each as a sum of the clients' gradients
        vectors[:clients, 0] = torch.eye(clients, dtype=torch.float64)
        vectors[clients, 1] = worst
        flat = vectors.flatten(1)
        gram = flat @ products.reshape(2 * clients, 2 * clients) @ flat.T
        alpha = pareto_direction(gram, gram[:, :clients].mean(-1))
        deltas = {name: state[name] for name in ("loss_delta", "disparity_delta")}
        return (alpha @ flat).view(2, clients), deltas


def _shrunk(delta: Tensor, norm: Tensor) -> Tensor:
    """A hundredth of the delta once it is no less than a tenth of the gradient's norm."""
    return torch.where((delta > _LEAST_DELTA) & (_NORM_SHARE * norm <= delta), _SHRINK * delta, delta)
