"""Training on priced rates: the base of methods that act on rates of groups over the whole federation.

A method has a coefficient c_g for the rate r_g of each group. With n_g the federation's rows that r_g is about, N all
its rows and s_i the score of a row (`rates.py`), sum_g c_g r_g is the mean over all rows of m[y_i, g_i] s_i, so

    each client minimises  mean_i  loss_i + m[y_i, g_i] s_i,        m[y, g] = c_g N / n_g

Normalised by the federation's counts, not the batch's, it is separable over clients, and a batch needs no row of each
group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ffalm.algorithms.contract import Algorithm, Batch, Measure, Prepared, RoundReport, Rows, State, Task
from ffalm.algorithms.rates import RATES, SCORES, RateConstraint
from ffalm.errors import require, require_known
from ffalm.fairness import Tally, masked_mean
from ffalm.fairness.groups import equal_weights


class PricedRates(Algorithm):
    """A subclass has a setting `constraint`, one name of `RATES` or several joined by commas, and sets `prices`."""

    broadcasts = ("prices",)

    constraint: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known(f"constraint of {self.title}", RATES, *self._names())

    def by_outputs(self, task: Task) -> bool:
        """With two labels the probability of either follows from the loss."""
        return task.labels > 2

    def objective(self, batch: Batch, state: State) -> Tensor:
        """The mean of loss_i + m s_i."""
        prices = state["prices"].flatten(-2).unbind(-2)
        favourable, correct, loss = (torch.take_along_dim(one, _cells(batch.rows), -1) for one in prices)
        priced = favourable * batch.favourable_probability() + correct * (-batch.losses).exp() + loss * batch.losses
        return masked_mean(batch.losses + priced, batch.mask)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """1/n, and each row's cell of the prices."""
        return {"share": equal_weights(rows.mask, dtype), "cells": _cells(rows)}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """For two labels 1/n * (1 + m_loss - m exp(-loss)), the sign of m by the row's label."""
        if batch.outputs is not None:
            return super().slopes(batch, state)
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        favourable, correct, loss = state["prices"].unbind(-3)
        signs = 2 * (torch.arange(batch.task.labels, device=loss.device) == batch.task.favourable).to(loss.dtype) - 1
        factors = 1 + loss, favourable * signs.unsqueeze(-1) + correct
        constant, slope = (torch.take_along_dim(one.flatten(-2), known["cells"], -1) for one in factors)
        return known["share"] * (constant - slope * (-batch.losses).exp())

    def rates(self, tally: Tally, task: Task) -> Tensor:
        """(..., set, group) all compared rates of a Tally; NaN if there are no rows."""
        return torch.cat([one.rates(tally, task) for one in self.constraints()], -2)

    def hits(self, tally: Tally, task: Task) -> Tensor:
        """(..., set, group) the numerators of the rates."""
        return torch.cat([one.hits(tally, task) for one in self.constraints()], -2)

    def shares(self, counts: Tensor, task: Task) -> Tensor:
        """(..., set, group) n_g / N of all compared rates, from rows per (client, label, group)."""
        return torch.cat([one.shares(counts.sum(-3), task) for one in self.constraints()], -2)

    def prices(self, coefficients: Tensor, shares: Tensor, task: Task) -> Tensor:
        """m[y, g] for each score, (..., score, label, group), where a rate of no rows has no price."""
        prices = shares.new_zeros(*shares.shape[:-2], len(SCORES), task.labels, task.groups)
        there = shares > 0
        sets = iter(torch.where(there, coefficients / torch.where(there, shares, 1.0), 0.0).unbind(-2))
        for constraint in self.constraints():
            for mask in constraint.masks(task):
                price = next(sets)
                prices[..., SCORES.index(constraint.score), :, :] += mask.unsqueeze(-1) * price.unsqueeze(-2)
        return prices

    def constraints(self) -> Sequence[RateConstraint]:
        """What is compared."""
        return [RATES[name] for name in self._names()]

    def _names(self) -> list[str]:
        return [name.strip() for name in self.constraint.split(",")]


class MeasuredRates(PricedRates):
    """A subclass moves multipliers by rates of the model that was sent, of the rows that its setting `measured` names.

    These are held-out rows, or the training rows of the clients that take part ("train").
    """

    measured: str

    @property
    def measure(self) -> Measure:
        """Held-out Tallies come with every report; those of training rows must be requested."""
        return Measure.NOTHING if self.measured == "held_out" else Measure.RECEIVED

    @property
    def needs_held_out(self) -> bool:
        """Unless training rows are measured."""
        return self.measured == "held_out"

    def measured_tally(self, report: RoundReport) -> Tally:
        """The pooled Tally of the measured rows."""
        if self.measured == "train":
            assert report.tally is not None
            return report.tally.pooled()
        require(
            report.validation is not None,
            f"{self.title} measures gaps on held-out rows, and this federation has none: give it a validation part, "
            "or set measured to train.",
        )
        assert report.validation is not None
        return report.validation


def _cells(rows: Rows) -> Tensor:
    """The number of each row's (label, group)."""
    return rows.labels * rows.task.groups + rows.groups
