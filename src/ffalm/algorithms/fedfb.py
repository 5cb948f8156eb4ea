"""FedFB: weights of rows per label and group, moved by the pooled gap of the groups (Zeng et al., 2021).

Demographic parity, with y = 1 the favourable label, m_yz rows and summed losses L_yz of (y, z), and n rows in all:
lambda_z starts at m_z / n, a row of (0, z) weighs n lambda_z / m_z and one of (1, z) 2 minus that. With the loss for
the 0-1 error, group z's rate of favourable predictions exceeds that of group 0 by

    F_z = f_z - f_0,        f_z = (L_0z - L_1z + m_1z) / m_z

    lambda_z <- clip(lambda_z + step / sqrt(t) * F_z, 0, 2 m_z / n)  for z > 0,    lambda_0 likewise, by -sum_z F_z

so a favoured group's unfavourable rows gain weight. Equal opportunity weighs favourable rows alone: lambda_z starts at
m_1z / n, a row of (1, z) weighs n lambda_z / m_1z, f_z = L_1z / m_1z, and the bound is m_1 / n.

Clients average the weighted losses of a batch; the paper sums them with weights 1/n as large. The server weighs each
model by the summed weights of its client's rows. The gap is that of the model that clients received, which they score
in the round after it was made; the paper spends a separate exchange of messages on this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import two_labels
from ffalm.algorithms.contract import Measure, RoundReport, State, Task
from ffalm.algorithms.registry import register
from ffalm.algorithms.simplex import normalised
from ffalm.algorithms.weighted_rows import WeightedRows
from ffalm.fairness import Tally
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedFB(WeightedRows):
    """Rows are weighted by label and group, to close the pooled gap. step=0 is FedAvg.

    `normalised_step` divides the gaps by their norm, as the paper's text has it.
    """

    name = "fedfb"
    title = "FedFB"
    paper = "Zeng, Chen and Lee, 2021 (arXiv 2110.15545)"
    limits = "Two labels. The gap is measured one round late. Weights can be large if a group has few rows of a label."
    server_settings = ("step", "metric", "normalised_step")
    duals_by_group = True
    remedies = "a smaller step or a smaller lr"
    measure = Measure.RECEIVED

    step: float = setting(0.3, "Step size of the row weights; divided by the root of the round.", least=0)
    metric: Literal["dp", "eo"] = setting("dp", "Gap: demographic parity or equal opportunity.")
    normalised_step: bool = setting(False, "Divide the gaps by their norm.")

    def start(self, task: Task, counts: Tensor) -> State:
        """Every row weighs 1."""
        two_labels(self, task)
        rows = counts.sum(-3).double()
        return {"duals": self._start_duals(rows, task), "row_weights": torch.ones_like(rows)}

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """Duals in proportion to the new shares: the weights of rows stay as they are."""
        by_group = state["row_weights"][..., 1 - task.favourable if self.metric == "dp" else task.favourable, :]
        return {**state, "duals": by_group[..., : task.compared] * self._start_duals(counts.sum(-3).double(), task)}

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """Weigh clients by the weights of their rows, and move these by the gaps."""
        assert report.tally is not None
        of_clients = (report.counts * state["row_weights"].unsqueeze(-3)).sum((-1, -2)) * report.taking_part
        weights = normalised(of_clients, report.sizes.double() * report.taking_part)
        rows = report.counts.sum(-3).double()
        at_start = self._start_duals(rows, report.task)
        most = 2 * at_start if self.metric == "dp" else at_start.sum(-1, keepdim=True)
        moves = self.step / math.sqrt(report.round) * self._gaps(report.tally.pooled(), report.task)
        duals = torch.minimum((state["duals"] + moves).clamp(min=0), most)
        return weights, {"duals": duals, "row_weights": self._row_weights(duals, at_start, rows, report.task)}

    def _start_duals(self, rows: Tensor, task: Task) -> Tensor:
        """m_z / n, or m_1z / n: the share of the compared rows that a dual is about."""
        compared = rows[..., : task.compared]
        about = compared.sum(-2) if self.metric == "dp" else compared[..., task.favourable, :]
        return about / compared.sum((-1, -2)).unsqueeze(-1)

    def _gaps(self, tally: Tally, task: Task) -> Tensor:
        """(-sum_z F_z, F_1, F_2, ...); a group without rows, or any where group 0 has none, counts with F_z = 0."""
        one, other = task.favourable, 1 - task.favourable
        losses, count = tally.compared().loss, tally.compared().count.double()
        if self.metric == "dp":
            hits, rows = losses[..., other, :] - losses[..., one, :] + count[..., one, :], count.sum(-2)
        else:
            hits, rows = losses[..., one, :], count[..., one, :]
        rates = torch.where(rows > 0, hits / rows, torch.nan)
        gaps = (rates[..., 1:] - rates[..., :1]).nan_to_num(0.0)
        if self.normalised_step:
            gaps = torch.nn.functional.normalize(gaps, dim=-1)
        return torch.cat([-gaps.sum(-1, keepdim=True), gaps], -1)

    def _row_weights(self, duals: Tensor, at_start: Tensor, rows: Tensor, task: Task) -> Tensor:
        """1 for rows that no dual is about."""
        weights = torch.ones_like(rows)
        by_group = torch.where(at_start > 0, duals / torch.where(at_start > 0, at_start, 1.0), 1.0)
        if self.metric == "dp":
            weights[..., 1 - task.favourable, : task.compared] = by_group
            weights[..., task.favourable, : task.compared] = 2 - by_group
        else:
            weights[..., task.favourable, : task.compared] = by_group
        return weights
