"""A Lagrangian on what people ask about: demographic parity, equal opportunity, equalised odds, accuracy, mean loss.

The server compares hard rates r_g of the model that it sent, pooled over held-out rows. With c the middle between the
largest and the smallest, all gaps are at most epsilon iff |r_g - c| <= epsilon / 2, so with v = r - c

    up <- clip(up + dual_lr (v - epsilon/2), 0, bound),    down <- clip(down + dual_lr (-v - epsilon/2), 0, bound)
    lambda = up - down + penalty * (v - clip(v, -epsilon/2, epsilon/2)),  less its mean over the compared groups

Multipliers rise while a gap is too large and relax by themselves where there is slack. Clients minimise the smooth
counterpart, with n the federation's counts of rows, N their sum, and s_i the probability of the favourable label:

    mean_i  loss_i + m[y_i, g_i] s_i,        m[y, g] = scale * lambda_g N / n_g    (n_g of the rows that are compared)

Normalised by the federation's counts, not the batch's, it is separable over clients, and a batch needs no row of each
group. `scale`, the smallest share n_g / N, keeps small groups from making the steps oscillate. Hard rates for the
multipliers, smooth ones for the model: the proxy-Lagrangian game of Cotter et al. (2019), with multipliers driven by
held-out rows, since a large model memorises its training rows and their gaps vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import not_negative, positive
from ffalm.algorithms.contract import Algorithm, Batch, Measure, Prepared, RoundReport, Rows, State, Task
from ffalm.algorithms.rates import RATES, SCORES, RateConstraint
from ffalm.algorithms.registry import register
from ffalm.errors import require, unknown
from ffalm.fairness import Tally, masked_mean
from ffalm.fairness.groups import equal_weights
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class Lagrangian(Algorithm):
    """The most accurate model whose gaps are at most `tolerance`: one rate constraint, or several joined by commas.

    `measured="train"` drives the multipliers by the training rows of the clients that take part instead of held-out
    rows. The group is needed for training alone, not for prediction.
    """

    name: ClassVar[str] = "lagrangian"
    title: ClassVar[str] = "Lagrangian"
    paper: ClassVar[str] = (
        "After Cotter, Jiang and Sridharan, Two-Player Games for Efficient Non-Convex Constrained "
        "Optimization, ALT 2019"
    )
    limits: ClassVar[str] = (
        "Needs held-out rows, unless measured is train. With very few held-out rows of a group its rates are noise."
    )
    broadcasts: ClassVar[tuple[str, ...]] = ("prices",)
    server_settings: ClassVar[tuple[str, ...]] = ("constraint", "tolerance", "dual_lr", "penalty", "dual_bound")
    remedies: ClassVar[str] = "a smaller dual_lr or dual_bound"

    constraint: str = setting("eo", "Rates to be equal: dp, eo, odds, accuracy or loss; several with commas.")
    tolerance: float = setting(0.0, "Largest gap that is allowed.")
    dual_lr: float = setting(0.5, "Step size of the multipliers.")
    penalty: float = setting(2.0, "Multiplier per unit of the excess gap of this round.")
    dual_bound: float = setting(5.0, "Largest multiplier.")
    measured: Literal["held_out", "train"] = setting("held_out", "Rows on which the gaps are measured.")

    def __post_init__(self) -> None:
        not_negative(self, "tolerance", "dual_lr", "penalty")
        positive(self, "dual_bound")
        for name in self._names():
            if name not in RATES:
                raise unknown("constraint of Lagrangian", name, RATES)
        if self.measured not in ("held_out", "train"):
            raise unknown("value of measured", str(self.measured), ("held_out", "train"))

    @property
    def measure(self) -> Measure:
        """Held-out Tallies come with every report; those of training rows must be asked for."""
        return Measure.NOTHING if self.measured == "held_out" else Measure.RECEIVED

    def start(self, task: Task, counts: Tensor) -> State:
        """No multipliers, no prices."""
        sets = sum(len(one.masks(task)) for one in self._constraints())
        none = torch.zeros(*counts.shape[:-3], sets, task.groups, dtype=torch.float64)
        prices = torch.zeros(*counts.shape[:-3], len(SCORES), task.labels, task.groups, dtype=torch.float64)
        return {"duals": none, "up": none, "down": none, "prices": prices}

    def by_outputs(self, task: Task) -> bool:
        """With two labels the probability of either follows from the loss."""
        return task.labels > 2

    def objective(self, batch: Batch, state: State) -> Tensor:
        """The mean of loss_i + m s_i."""
        favourable, correct, loss = self._prices_of(batch.rows, state)
        priced = favourable * batch.favourable_probability() + correct * (-batch.losses).exp() + loss * batch.losses
        return masked_mean(batch.losses + priced, batch.mask)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """1/n, and how the probability of the favourable label moves with that of a row's own, of two."""
        favourable = (rows.labels == rows.task.favourable).to(dtype)
        return {"share": equal_weights(rows.mask, dtype), "sign": 2 * favourable - 1}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """For two labels 1/n * (1 + m_loss - m exp(-loss)), the sign of m by the row's label."""
        if batch.outputs is not None:
            return super().slopes(batch, state)
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        favourable, correct, loss = self._prices_of(batch.rows, state)
        return known["share"] * (1 + loss - (favourable * known["sign"] + correct) * (-batch.losses).exp())

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Move the multipliers by the pooled rates of the model that was sent, and price the cells anew."""
        tally = self._pooled(report)
        task, half = report.task, self.tolerance / 2
        rates = torch.cat([one.rates(tally, task) for one in self._constraints()], -2)
        known = ~rates.isnan() & (torch.arange(task.groups) < task.compared)
        rates = rates.masked_fill(~known, torch.nan)
        highest = rates.nan_to_num(-torch.inf).amax(-1, keepdim=True)
        lowest = rates.nan_to_num(torch.inf).amin(-1, keepdim=True)
        v = torch.where(known, rates - (highest + lowest) / 2, 0.0)
        up = (state["up"] + self.dual_lr * (v - half)).clamp(0, self.dual_bound) * known
        down = (state["down"] + self.dual_lr * (-v - half)).clamp(0, self.dual_bound) * known
        duals = up - down + self.penalty * (v - v.clamp(-half, half))
        duals = (duals - duals.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)) * known
        return {"duals": duals, "up": up, "down": down, "prices": self._priced(duals, report)}

    def _priced(self, duals: Tensor, report: RoundReport) -> Tensor:
        """m[y, g] for each score, (score, label, group), by the counts of the whole federation."""
        task, rows = report.task, report.counts.sum(-3).double()
        prices = rows.new_zeros(*rows.shape[:-2], len(SCORES), task.labels, task.groups)
        sets = iter(duals.unbind(-2))
        for constraint in self._constraints():
            for mask in constraint.masks(task):
                shares = (mask @ rows) / rows.sum((-1, -2)).unsqueeze(-1)
                there = (shares > 0) & (torch.arange(task.groups) < task.compared)
                scale = torch.where(there, shares, 1.0).amin(-1, keepdim=True)
                price = torch.where(there, scale * next(sets) / torch.where(there, shares, 1.0), 0.0)
                prices[..., SCORES.index(constraint.score), :, :] += mask.unsqueeze(-1) * price.unsqueeze(-2)
        return prices

    def _pooled(self, report: RoundReport) -> Tally:
        if self.measured == "train":
            assert report.tally is not None
            return report.tally.pooled()
        require(
            report.validation is not None,
            "Lagrangian measures gaps on held-out rows, and this federation has none: give it a validation part, or "
            "set measured to train.",
        )
        assert report.validation is not None
        return report.validation

    def _prices_of(self, rows: Rows, state: State) -> list[Tensor]:
        """Each row's price of each score."""
        cells = rows.labels * rows.task.groups + rows.groups
        return [torch.take_along_dim(prices, cells, -1) for prices in state["prices"].flatten(-2).unbind(-2)]

    def _names(self) -> list[str]:
        return [name.strip() for name in self.constraint.split(",")]

    def _constraints(self) -> list[RateConstraint]:
        return [RATES[name] for name in self._names()]
