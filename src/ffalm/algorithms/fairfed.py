"""FairFed: clients whose local unfairness is far from the federation's count for less (Ezzeldin et al., AAAI 2023).

Clients score the received model. With F the metric of the pooled data (signed) and F_k a client's own,

    gap_k = |F - F_k|        (|Acc - Acc_k| where F_k is undefined)
    omega_k <- omega_k - step * (gap_k - mean_j gap_j),        w = sum_k omega_k w_k / sum_k omega_k

Weights are clipped at 0 and carried normalised; local training is plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import two_groups
from ffalm.algorithms.contract import Measure, RoundReport, State, Task
from ffalm.algorithms.registry import register
from ffalm.algorithms.simplex import normalised
from ffalm.algorithms.weighted_clients import WeightedClients
from ffalm.fairness import Tally
from ffalm.fairness.group_metrics import accuracy, joint_dpd, joint_eod, signed_dpd, signed_eod
from ffalm.settings import setting

_POOLED = {"dpd": signed_dpd, "eod": signed_eod}
_AUTHORS = {"dpd": joint_dpd, "eod": joint_eod}


@register
@dataclass(frozen=True)
class FairFed(WeightedClients):
    """Clients whose gap is far from the global gap lose weight in the average; nothing else is changed.

    `variant="authors"` is the FFALM authors' own form: unsigned joint metrics, whose size-weighted mean stands for the
    global one, and no accuracy fallback.
    """

    name = "fairfed"
    title = "FairFed"
    paper = "Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023"
    limits = (
        "Acts through the clients' weights alone: if every client has the same gap, it is FedAvg. The "
        "server needs each client's Tally."
    )
    most_groups = 2
    server_settings = ("step", "metric", "variant")
    remedies = "a smaller step or a smaller lr"
    measure = Measure.RECEIVED

    step: float = setting(0.5, "How much weight a client loses for its distance from the global gap.", least=0)
    metric: Literal["dpd", "eod"] = setting("dpd", "Gap that clients are compared by.")
    variant: Literal["pooled", "authors"] = setting(
        "pooled", "Global gap of the pooled rows, or as the authors of FFALM compute it."
    )

    def start(self, task: Task, counts: Tensor) -> State:
        """omega_k = n_k / n."""
        two_groups(self, task)
        return super().start(task, counts)

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """Move weight from clients far from the global metric to those near it."""
        assert report.tally is not None
        part = report.taking_part
        gaps = self._gaps(report.tally, report)
        known = part & ~gaps.isnan()  # a site that withholds every cell keeps its weight
        gaps = torch.where(known, gaps, 0.0)
        mean_gap = gaps.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
        moved = state["client_weights"] - self.step * (gaps - mean_gap) * known
        rows = report.sizes.double()
        carried = normalised(moved.clamp(min=0), rows)
        return normalised(carried * part, rows * part), {"client_weights": carried}

    def _gaps(self, tally: Tally, report: RoundReport) -> Tensor:
        """How far each client's metric is from the federation's."""
        if self.variant == "authors":
            local = _AUTHORS[self.metric](tally, report.favourable).nan_to_num(0.0)
            return (local - (report.shares() * local).sum(-1, keepdim=True)).abs()
        metric = _POOLED[self.metric]
        whole = tally.pooled()
        gap = (metric(whole, report.favourable).unsqueeze(-1) - metric(tally, report.favourable)).abs()
        fallback = (accuracy(whole).unsqueeze(-1) - accuracy(tally)).abs()
        return torch.where(gap.isnan(), fallback, gap)
