"""FedAvgM: the server takes the clients' mean change as a gradient and adds momentum to it (Hsu et al., 2019).

v <- momentum * v + (x_t - sum_i p_i w_i),        x_{t+1} = x_t - server_lr * v
"""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining, RoundReport
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedAvgM(PlainTraining):
    """FedAvg with momentum at the server; `momentum=0, server_lr=1` is FedAvg up to rounding."""

    name = "fedavgm"
    title = "FedAvgM"
    paper = (
        "Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification, arXiv:1909.06335, 2019"
    )
    limits = "It does nothing about gaps between groups."
    server_settings = ("momentum", "server_lr")
    server_vectors = ("velocity",)
    remedies = "a smaller lr, momentum or server_lr"

    momentum: float = setting(0.9, "Momentum of the server.", least=0)
    server_lr: float = setting(1.0, "Step size of the server.", above=0)

    @property
    def separable(self) -> bool:
        """Clients measure nothing: the server steps by the mean of their models."""
        return True

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """A step of SGD with momentum."""
        velocity = self.momentum * vectors["velocity"] + (model - mean)
        return model - self.server_lr * velocity, {"velocity": velocity}
