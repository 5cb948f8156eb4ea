"""SCAFFOLD: control variates correct for client drift (Karimireddy et al., ICML 2020, algorithm 1, option II).

With c the server's control variate and c_i the client's, K_i its local steps of step size lr, a client does

    y <- y - lr * (g_i(y) - c_i + c),        c_i+ = c_i - c + (x - y) / (K_i lr)

and the server, S being the clients that took part,

    x <- sum_S p_i y_i,        c <- c + |S| / N * sum_S p_i (c_i+ - c_i)

Clients count by their size (p_i, and rows instead of |S| and N); with equal sizes this is the paper's form.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ffalm.algorithms.contract import PlainTraining, RoundReport, Sent
from ffalm.algorithms.registry import register
from ffalm.algorithms.vectors import ModelVector, Vectors


@register
@dataclass(frozen=True)
class SCAFFOLD(PlainTraining):
    """FedAvg with control variates; each client keeps one between the rounds in which it trains."""

    name = "scaffold"
    title = "SCAFFOLD"
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    limits = (
        "It does nothing about gaps between groups. Messages are twice as large, and each client keeps a "
        "vector as large as the model. The local optimizer should be plain SGD."
    )
    broadcasts = ("control",)
    server_vectors = ("control",)
    client_vectors = ("control",)
    uploads = ("control_change",)

    @property
    def separable(self) -> bool:
        """Clients measure nothing: control variates change by the mean of the clients' changes."""
        return True

    def drift(self, weights: ModelVector, sent: Sent, own: Vectors) -> ModelVector:
        """c - c_i."""
        return sent.vectors["control"] - own["control"]

    def finish(
        self, weights: ModelVector, sent: Sent, own: Vectors, steps: Tensor, lr: float
    ) -> tuple[Vectors, Vectors]:
        """Keep c_i+, upload c_i+ - c_i; steps of size 0 say nothing about the gradient."""
        control = own["control"]
        if lr > 0:
            control = control - sent.vectors["control"] + (sent.model - weights) / (steps * lr)
        return {"control": control}, {"control_change": control - own["control"]}

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """c moves by the clients' mean change, in proportion to the rows that took part."""
        present = (report.sizes * report.taking_part).sum(-1).double() / report.sizes.sum(-1)
        return mean, {"control": vectors["control"] + uploads["control_change"] * present}
