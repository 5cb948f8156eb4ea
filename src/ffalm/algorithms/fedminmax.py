"""FedMinMax: the group with the largest loss counts for more (Papadaki et al., FAccT 2022).

Of all mixtures mu of the groups, the model is trained for the worst: min_w max_mu sum_a mu_a r_a(w), with r_a the mean
loss of group a over the federation and rho_a its share of the rows. A client's row of group a weighs mu_a / rho_a, and
by the losses of the model that was sent

    mu <- projection onto the simplex of  mu + step * r,        r_a = sum_i p_i (loss sum of a at i / n_i) / rho_a

which is the pooled mean loss if all clients take part, and a mean over clients of what each can compute alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms.contract import Measure, RoundReport, State, Task
from ffalm.algorithms.registry import register
from ffalm.algorithms.simplex import onto_simplex
from ffalm.algorithms.weighted_rows import WeightedRows
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedMinMax(WeightedRows):
    """Groups with larger losses gain weight, by projected ascent. step=0 is FedAvg."""

    name = "fedminmax"
    title = "FedMinMax"
    paper = "Papadaki et al., FAccT 2022 (arXiv 2201.08304)"
    limits = "Improves the group with the largest loss; gaps of rates may stay."
    server_settings = ("step",)
    remedies = "a smaller step or a smaller lr"
    measure = Measure.RECEIVED

    step: float = setting(0.1, "Step size of the groups' weights.", least=0)

    @property
    def separable(self) -> bool:
        """The groups' weights ascend by sums over clients, divided by shares that are known at the start."""
        return True

    def start(self, task: Task, counts: Tensor) -> State:
        """mu_a = the group's share of the compared rows, so that every row weighs 1."""
        shares = _shares(counts, task)
        return {
            "group_weights": shares / shares.sum(-1, keepdim=True),
            "group_shares": shares,
            "row_weights": torch.ones_like(counts.sum(-3).double()),
        }

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """mu in proportion to the new shares, so that rows keep their weights; those of a new group weigh 1."""
        shares = _shares(counts, task)
        by_group = torch.where(state["group_shares"] > 0, state["row_weights"][..., 0, : task.compared], 1.0)
        mixture = by_group * shares
        return self.project({**state, "group_weights": mixture / mixture.sum(-1, keepdim=True), "group_shares": shares})

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Ascend on the groups' losses."""
        assert report.tally is not None
        by_client = report.tally.compared().loss.sum(-2) / report.sizes.clamp(min=1).unsqueeze(-1)
        shares = state["group_shares"]
        losses = (report.shares().unsqueeze(-1) * by_client).sum(-2) / torch.where(shares > 0, shares, 1.0)
        return {**state, "group_weights": state["group_weights"] + self.step * losses}

    def project(self, state: State) -> State:
        """mu on the simplex, a group without rows at 0; and the weights of rows that follow."""
        shares = state["group_shares"]
        there = shares > 0
        mixture = onto_simplex(torch.where(there, state["group_weights"], -torch.inf))
        row_weights = torch.ones_like(state["row_weights"])
        by_group = mixture * shares.sum(-1, keepdim=True) / torch.where(there, shares, 1.0)
        row_weights[..., : shares.shape[-1]] = by_group.unsqueeze(-2)
        return {**state, "group_weights": mixture, "row_weights": row_weights}


def _shares(counts: Tensor, task: Task) -> Tensor:
    """rho_a of the compared groups, from rows per (client, label, group)."""
    rows = counts.sum(-3).double()
    return rows.sum(-2)[..., : task.compared] / rows.sum((-1, -2)).unsqueeze(-1)
