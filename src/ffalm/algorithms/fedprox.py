"""FedProx: a proximal term keeps local models near the global one (Li et al., MLSys 2020).

min_w  F_i(w) + mu / 2 * |w - w_t|^2,        so each gradient gains  mu * (w - w_t)
"""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining, Sent
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedProx(PlainTraining):
    """FedAvg with a proximal term of strength `mu`; `mu=0` is FedAvg."""

    name = "fedprox"
    title = "FedProx"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    limits = "It does nothing about gaps between groups. The proximal term is added after the gradient is clipped."
    remedies = "a smaller mu or a smaller lr"

    mu: float = setting(0.1, "Strength of the proximal term; 0 is FedAvg.", least=0)

    @property
    def separable(self) -> bool:
        """Clients measure nothing."""
        return True

    def drift(self, weights: ModelVector, sent: Sent, own: Vectors) -> ModelVector:
        """mu * (w - w_t)."""
        return self.mu * (weights - sent.model)
