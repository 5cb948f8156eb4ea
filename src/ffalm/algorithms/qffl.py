"""q-FFL by q-FedAvg: clients with a high loss count for more (Li et al., ICLR 2020, algorithm 2).

The objective is sum_k p_k F_k(w)^(q+1) / (q+1). With F_k the received model's loss on client k, w_k the model that k
trained, L the inverse of its step size and D_k = L (w - w_k),

    Delta_k = F_k^q D_k,    h_k = q F_k^(q-1) |D_k|^2 + L F_k^q,    w <- w - sum_k p_k Delta_k / sum_k p_k h_k

The published form draws clients by their size and sums without p_k; here clients are drawn alike and p_k is the share
of rows, or the same for all (`client_weights="uniform"`). So q = 0 is FedAvg, by size or uniform. Written as

    w + eta (sum_k a_k w_k - w),    a_k = p_k F_k^q / sum_j p_j F_j^q,    eta = sum_k p_k F_k^q L / sum_k p_k h_k

the server needs the weighted mean of the models and the norm of each client's change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.contract import CHANGE, Measure, PlainTraining, RoundReport, State
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.settings import setting

_LEAST_LOSS = 1e-10  # F^(q-1) has no value at 0


@register
@dataclass(frozen=True)
class QFFL(PlainTraining):
    """FedAvg on the clients' losses to the power q + 1; more q, more equal losses. q = 0 is FedAvg."""

    name = "qffl"
    title = "q-FFL"
    paper = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"
    limits = (
        "Evens out the losses of clients, not of groups. The server needs each client's loss and the norm of "
        "its change: no secure aggregation or privacy."
    )
    products = (CHANGE,)
    server_settings = ("q", "client_weights", "lipschitz")
    remedies = "a smaller lr or q, or a larger lipschitz"
    measure = Measure.RECEIVED  # for F_k

    q: float = setting(1.0, "Power of the losses; 0 is FedAvg.", least=0)
    client_weights: Literal["size", "uniform"] = setting("size", "Clients count by their rows, or all the same.")
    lipschitz: float | None = setting(None, "Smoothness constant of the losses; none for 1 / lr.", above=0)

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """a_k."""
        powers = self._weights(report) * self._losses(report) ** self.q
        return powers / powers.sum(-1, keepdim=True), state

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """w + eta (mean - w), where mean is weighted by a_k."""
        if self.q == 0:
            return mean, vectors
        assert report.products is not None
        weights, losses = self._weights(report), self._losses(report)
        norms = report.products[0, :, 0].diagonal(dim1=-2, dim2=-1)
        lipschitz = self.lipschitz or (1 / report.lr if report.lr > 0 else 0.0)
        powers = losses**self.q
        curvatures = self.q * losses ** (self.q - 1) * norms * lipschitz + powers  # h_k / L
        eta = (weights * powers).sum(-1) / (weights * curvatures).sum(-1)
        return model + eta * (mean - model), vectors

    def _weights(self, report: RoundReport) -> Tensor:
        """p_k; 0 for a client that did not take part."""
        if self.client_weights == "size":
            return report.shares()
        return report.taking_part / report.taking_part.sum(-1, keepdim=True).double()

    def _losses(self, report: RoundReport) -> Tensor:
        """F_k; of a site that withholds every cell, the mean of the others."""
        assert report.tally is not None
        losses = report.tally.mean_loss()
        known = report.taking_part & ~losses.isnan()
        mean = torch.where(known, losses, 0.0).sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(known, losses, mean).clamp(min=_LEAST_LOSS)
