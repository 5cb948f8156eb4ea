"""Training on weighted rows: the base of methods that give each (label, group) one weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ffalm.algorithms.contract import Algorithm, Batch, Prepared, Rows, State
from ffalm.fairness.groups import equal_weights


class WeightedRows(Algorithm):
    """Clients minimise mean_i w[y_i, g_i] loss_i; w is the entry `row_weights` of the state, (..., label, group)."""

    broadcasts = ("row_weights",)

    def objective(self, batch: Batch, state: State) -> Tensor:
        """The weighted sum of the losses, divided by the number of rows."""
        return (self.slopes(batch, state) * batch.losses).sum(-1)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """1/n, and the cell (label, group) of each row."""
        return {"share": equal_weights(rows.mask, dtype), "cell": rows.labels * rows.task.groups + rows.groups}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """w / n, whatever the losses."""
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        return known["share"] * torch.take_along_dim(state["row_weights"].flatten(-2), known["cell"], -1)
