"""FedAvg: local SGD on the mean loss, models averaged by training size (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining
from ffalm.algorithms.registry import register


@register
@dataclass(frozen=True)
class FedAvg(PlainTraining):
    """The baseline: it does not use groups.

    w_t = sum_i p_i w_i,    p_i = n_i / n
    """

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    limits = "It does nothing about gaps between groups."

    @property
    def separable(self) -> bool:
        """Clients measure nothing: the server has models to average, no more."""
        return True
