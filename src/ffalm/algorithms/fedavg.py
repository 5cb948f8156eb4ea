"""FedAvg: local SGD on the mean loss, models averaged by training size (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ffalm.algorithms.base import Algorithm, Prepared, State
from ffalm.algorithms.registry import register
from ffalm.fairness.groups import equal_weights


@register
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The baseline: knows nothing of groups.

    w_t = sum_i p_i w_i,    p_i = n_i / n
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    separable: ClassVar[bool] = True

    def prepare(self, groups: Tensor, labels: Tensor, mask: Tensor, dtype: torch.dtype) -> Prepared:
        """1/n for each of the n rows that count."""
        return {"share": equal_weights(mask, dtype)}

    def row_weights(
        self, losses: Tensor, groups: Tensor, labels: Tensor, mask: Tensor, state: State,
        prepared: Prepared | None = None,
    ) -> Tensor:  # fmt: skip
        """What was prepared: the losses have no part in it."""
        return (prepared or self.prepare(groups, labels, mask, losses.dtype))["share"]
