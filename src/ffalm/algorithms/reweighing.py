"""Reweighing: rows are weighted so that label and group are independent (Kamiran and Calders, 2012).

    w(y, z) = P(y) P(z) / P(y, z)

with the shares of the whole federation's rows, or with each client's own. Over the weighted rows P(y | z) is the same
for every group. The weights are fixed before training and need nothing but counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.contract import State, Task
from ffalm.algorithms.registry import register
from ffalm.algorithms.weighted_rows import WeightedRows
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class Reweighing(WeightedRows):
    """Fixed weights of rows, by counts of the federation (`scope="global"`) or of each client alone ("local").

    Local weights never leave a client; where a client lacks a group or a label they do nothing for it.
    """

    name = "reweighing"
    title = "Reweighing"
    paper = "Kamiran and Calders, 2012; in federated learning: Abay et al., 2020 (arXiv 2012.02447)"
    limits = "Makes label and group independent in the training rows; the model need not follow."

    scope: Literal["global", "local"] = setting("global", "Whose counts give the weights.")

    @property
    def separable(self) -> bool:
        """Clients measure nothing: the weights are those of counts."""
        return True

    def start(self, task: Task, counts: Tensor) -> State:
        """The weights by the counts of all clients."""
        return {"row_weights": _weights(counts.sum(-3), task)} if self.scope == "global" else {}

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """The weights by the counts of all that are known now."""
        return self.start(task, counts)

    def own_state(self, task: Task, counts: Tensor) -> State:
        """The weights by the client's own counts."""
        return {"row_weights": _weights(counts, task)} if self.scope == "local" else {}


def _weights(counts: Tensor, task: Task) -> Tensor:
    """P(y) P(z) / P(y, z) over rows of the compared groups; 1 for other groups and for cells without rows."""
    weights = torch.ones(counts.shape, dtype=torch.float64)
    rows = counts[..., : task.compared].double()
    expected = rows.sum(-1, keepdim=True) * rows.sum(-2, keepdim=True) / rows.sum((-1, -2), keepdim=True)
    weights[..., : task.compared] = torch.where(rows > 0, expected / rows, 1.0)
    return weights
