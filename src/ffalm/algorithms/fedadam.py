"""FedAdam: Adam at the server on the clients' mean change (Reddi et al., ICLR 2021, algorithm 2).

D = sum_i p_i w_i - x_t,    m <- beta1 m + (1 - beta1) D,    v <- beta2 v + (1 - beta2) D^2
x_{t+1} = x_t + server_lr * m / (sqrt(v) + tau),             m_0 = 0, v_0 = tau^2
"""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining, RoundReport
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedAdam(PlainTraining):
    """FedAvg with an adaptive server step for every parameter; `tau` bounds how adaptive it is."""

    name = "fedadam"
    title = "FedAdam"
    paper = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"
    limits = "It does nothing about gaps between groups. Models with BatchNorm: statistics are averaged, not adapted."
    server_settings = ("server_lr", "beta1", "beta2", "tau")
    server_vectors = ("mean", "variance")
    remedies = "a smaller lr or server_lr, or a larger tau"

    server_lr: float = setting(0.01, "Step size of the server.", above=0)
    beta1: float = setting(0.9, "Decay of the mean of changes.", least=0, below=1)
    beta2: float = setting(0.99, "Decay of the mean of squared changes.", least=0, below=1)
    tau: float = setting(0.001, "Added to the root of the mean square; bounds how adaptive it is.", above=0)

    @property
    def separable(self) -> bool:
        """Clients measure nothing: the server steps by the mean of their models."""
        return True

    def start_vectors(self, model: ModelVector) -> Vectors:
        """m = 0, v = tau^2."""
        return {"mean": model.zeros(), "variance": model.zeros() + self.tau**2}

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """A step of Adam without bias correction, as published."""
        change = mean - model
        first = self.beta1 * vectors["mean"] + (1 - self.beta1) * change
        second = self.beta2 * vectors["variance"] + (1 - self.beta2) * (change * change)
        return model + self.server_lr * (first / (second.sqrt() + self.tau)), {"mean": first, "variance": second}
