"""A Lagrangian on what people ask about: demographic parity, equal opportunity, equalised odds, accuracy, mean loss.

The server compares hard rates r_g of the model that it sent, pooled over held-out rows. With c the middle between the
largest and the smallest, all gaps are at most epsilon iff |r_g - c| <= epsilon / 2, so with v = r - c

    up <- clip(up + dual_lr (v - epsilon/2), 0, bound),    down <- clip(down + dual_lr (-v - epsilon/2), 0, bound)
    lambda = up - down + penalty * (v - clip(v, -epsilon/2, epsilon/2)),  less its mean over the compared groups

Multipliers rise while a gap is too large and relax by themselves if there is slack. Those of a group without
measured rows in a round stay, and all do if fewer than two groups have any: no gap is known then. Clients minimise
the smooth counterpart (`rate_prices.py`), with n the federation's counts of rows, N their sum, and s_i the probability
of the favourable label:

    mean_i  loss_i + m[y_i, g_i] s_i,        m[y, g] = scale * lambda_g N / n_g    (n_g of the rows that are compared)

`scale`, the smallest share n_g / N, keeps small groups from making the steps oscillate. Hard rates for the
multipliers, smooth ones for the model: the proxy-Lagrangian game of Cotter et al. (2019), with multipliers driven by
held-out rows, since a large model memorises its training rows and their gaps vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.contract import RoundReport, State, Task
from ffalm.algorithms.rate_prices import MeasuredRates
from ffalm.algorithms.registry import register
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class Lagrangian(MeasuredRates):
    """The most accurate model whose gaps are at most `tolerance`: one rate constraint, or several joined by commas.

    `measured="train"` drives the multipliers by the training rows of the clients that take part instead of held-out
    rows. The group is needed for training alone, not for prediction.
    """

    name = "lagrangian"
    title = "Lagrangian"
    paper = (
        "After Cotter, Jiang and Sridharan, Two-Player Games for Efficient Non-Convex Constrained "
        "Optimization, ALT 2019"
    )
    limits = (
        "Needs held-out rows, unless measured is train. With very few held-out rows of a group its rates are noise."
    )
    server_settings = ("constraint", "tolerance", "dual_lr", "penalty", "dual_bound")
    duals_by_group = True
    remedies = "a smaller lr, dual_lr or dual_bound"

    constraint: str = setting("eo", "Rates to be equal: dp, eo, odds, accuracy or loss; several with commas.")
    tolerance: float = setting(0.0, "Largest gap that is allowed.", least=0)
    dual_lr: float = setting(0.5, "Step size of the multipliers.", least=0)
    penalty: float = setting(2.0, "Multiplier per unit of the excess gap of this round.", least=0)
    dual_bound: float = setting(5.0, "Largest multiplier.", above=0)
    measured: Literal["held_out", "train"] = setting("held_out", "Rows on which the gaps are measured.")

    def start(self, task: Task, counts: Tensor) -> State:
        """No multipliers, no prices."""
        shares = self.shares(counts, task)
        none = torch.zeros_like(shares)
        return {"duals": none, "up": none, "down": none, "prices": self.prices(none, shares, task)}

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Move the multipliers by the pooled rates of the model that was sent, and price the cells anew."""
        task, half = report.task, self.tolerance / 2
        rates = self.rates(self.measured_tally(report), task)
        known = ~rates.isnan() & (torch.arange(task.groups) < task.compared)
        rates = rates.masked_fill(~known, torch.nan)
        highest = rates.nan_to_num(-torch.inf).amax(-1, keepdim=True)
        lowest = rates.nan_to_num(torch.inf).amin(-1, keepdim=True)
        v = torch.where(known, rates - (highest + lowest) / 2, 0.0)
        compared = known.sum(-1, keepdim=True) > 1
        moved = {name: (state[name] + self.dual_lr * step).clamp(0, self.dual_bound)
                 for name, step in (("up", v - half), ("down", -v - half))}  # fmt: skip
        up, down = (torch.where(known & compared, value, state[name]) for name, value in moved.items())
        priced = known | (up > 0) | (down > 0)
        duals = up - down + self.penalty * (v - v.clamp(-half, half))
        duals = (duals - duals.sum(-1, keepdim=True) / priced.sum(-1, keepdim=True).clamp(min=1)) * priced
        duals = torch.where(compared, duals, state["duals"])
        return {"duals": duals, "up": up, "down": down, "prices": self._prices_of(duals, report.counts, task)}

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """The same multipliers, priced by the new shares."""
        return {**state, "prices": self._prices_of(state["duals"], counts, task)}

    def _prices_of(self, duals: Tensor, counts: Tensor, task: Task) -> Tensor:
        shares = self.shares(counts, task)
        scale = torch.where(shares > 0, shares, 1.0).amin(-1, keepdim=True)
        return self.prices(scale * duals, shares, task)
