"""Fairness constraints on rates: which rates of which groups are compared.

Every compared rate is a weighted mean over cells (label, group) of a score's mean in the cell, where the score is the
probability of the favourable label, that of the row's own label, or its loss. So each is linear in the rows, and the
Lagrangian of many clients is the sum of theirs once the weights are the federation's own counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.contract import Task
from ffalm.fairness import Tally


@dataclass(frozen=True)
class RateConstraint:
    """Groups have equal rates, over all labels together or label by label."""

    score: Literal["favourable", "correct", "loss"]
    labels: Literal["together", "favourable", "each"]

    def masks(self, task: Task) -> Tensor:
        """(set, label): which labels' rows each compared set of rates is about."""
        if self.labels == "each":
            return torch.eye(task.labels, dtype=torch.float64)
        one = torch.ones(1, task.labels, dtype=torch.float64)
        if self.labels == "favourable":
            one = torch.zeros_like(one)
            one[0, task.favourable] = 1
        return one

    def hits(self, tally: Tally, task: Task) -> Tensor:
        """(..., set, group) rows that were predicted so, or sums of losses; a rate is this by the number of rows."""
        counted = tally.confusion.double()
        if self.score == "loss":
            hits = tally.loss
        elif self.score == "favourable":
            hits = counted[..., task.favourable, :, :]
        else:
            hits = counted.diagonal(dim1=-3, dim2=-2).transpose(-1, -2)
        return self.masks(task) @ hits

    def rates(self, tally: Tally, task: Task) -> Tensor:
        """(..., set, group) rates of hard predictions, or mean losses; NaN if there are no rows."""
        return self.hits(tally, task) / (self.masks(task) @ tally.count.double())

    def shares(self, counts: Tensor, task: Task) -> Tensor:
        """(..., set, group) share of all rows per (label, group) that each rate is about; 0 for groups not compared."""
        rows = counts.double()
        shares = (self.masks(task) @ rows) / rows.sum((-1, -2), keepdim=True)
        return torch.where(torch.arange(task.groups) < task.compared, shares, 0.0)


#: The scores in the order of the prices that clients receive.
SCORES = ("favourable", "correct", "loss")

RATES = {
    "dp": RateConstraint("favourable", "together"),  # demographic parity: P(predicted favourable | group)
    "eo": RateConstraint("favourable", "favourable"),  # equal opportunity: the same among favourable rows
    "odds": RateConstraint("favourable", "each"),  # equalised odds: the same among the rows of each label
    "accuracy": RateConstraint("correct", "together"),  # accuracy parity
    "loss": RateConstraint("loss", "together"),  # the paper's loss parity, pooled over the federation
}
