"""Reductions: a cost for every favourable prediction, by group, set by multipliers (Agarwal et al., ICML 2018).

With r_g a group's rate over the federation and r that of all compared rows, the constraints are

    r_g - r <= tolerance  and  r - r_g <= tolerance        with multipliers lambda_g+ and lambda_g-

and clients minimise L + sum_g (lambda_g+ - lambda_g-) (r_g - r), with probabilities instead of predictions
(`rate_prices.py`). Each round is a step of exponentiated gradient by the violations v of the model that was sent:

    theta <- theta + dual_lr * (v - tolerance),        lambda = bound * exp(theta) / (1 + sum exp(theta))

A group without measured rows keeps its theta, and all do if fewer than two groups have any.

A fixed `multiplier` is one point of the paper's grid search for two groups: L + multiplier * (r_0 - r_1); all points
of a grid train in one stack. The model is that of the last round; the paper returns a random mixture of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import finite, left_at_defaults, two_groups
from ffalm.algorithms.contract import RoundReport, State, Task
from ffalm.algorithms.rate_prices import MeasuredRates
from ffalm.algorithms.registry import register
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class Reductions(MeasuredRates):
    """Multipliers on one rate constraint, or several joined by commas: by exponentiated gradient, or fixed.

    `measured="train"` drives them by the training rows of the clients that take part, as in the paper, instead of
    held-out rows, on which large models still show gaps.
    """

    name = "reductions"
    title = "Reductions"
    paper = "Agarwal et al., ICML 2018 (arXiv 1803.02453)"
    limits = (
        "The last round's model stands for the paper's mixture of all rounds. A fixed multiplier is for two groups."
    )
    server_settings = ("constraint", "multiplier", "tolerance", "dual_lr", "bound")
    remedies = "a smaller lr, dual_lr, bound or multiplier"

    constraint: str = setting("dp", "Rates to be equal: dp, eo, odds, accuracy or loss; several with commas.")
    multiplier: float | None = setting(
        None,
        "Fixed multiplier of the first group's rate minus the second's; below 0 raises the first. None: it is learned.",
    )
    tolerance: float = setting(0.0, "Largest gap that is allowed.", least=0)
    dual_lr: float = setting(0.3, "Step size of the exponentiated gradient.", least=0)
    bound: float = setting(2.0, "Largest sum of the multipliers.", above=0)
    measured: Literal["held_out", "train"] = setting("held_out", "Rows on which the gaps are measured.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multiplier is not None:
            finite(self, "multiplier")
            left_at_defaults(self, ["tolerance", "dual_lr", "bound", "measured"], "a fixed multiplier is not learned")

    @property
    def needs_held_out(self) -> bool:
        """Where the multipliers are learned on held-out rows."""
        return super().needs_held_out and self.multiplier is None

    def start(self, task: Task, counts: Tensor) -> State:
        """All theta 0, where the two multipliers of every group cancel; or the prices of the fixed multiplier."""
        shares = self.shares(counts, task)
        duals = torch.zeros_like(shares)
        if self.multiplier is None:
            return self._state(duals, torch.stack([duals, duals], -2), shares, task)
        two_groups(self, task)
        duals[..., 0], duals[..., 1] = self.multiplier, -self.multiplier
        return {"duals": duals, "prices": self.prices(duals, shares, task)}

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Exponentiated gradient by the violations of the model that was sent."""
        if self.multiplier is not None:
            return state
        task, tally = report.task, self.measured_tally(report)
        rows = self.shares(tally.count.unsqueeze(-3), task)
        known = rows > 0
        moving = known & (known.sum(-1, keepdim=True) > 1)
        rates = torch.where(known, self.rates(tally, task), 0.0)
        overall = (rates * rows).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True)
        violation = torch.where(known, rates - overall, 0.0)
        moves = (torch.stack([violation, -violation], -2) - self.tolerance) * moving.unsqueeze(-2)
        theta = state["theta"] + self.dual_lr * moves
        priced = known | (theta != 0).any(-2)  # a group that was never measured has no multipliers
        exponents = torch.where(priced.unsqueeze(-2), theta, -torch.inf)
        flat = torch.cat([exponents.flatten(-3), torch.zeros_like(exponents[..., 0, 0, :1])], -1)
        multipliers = self.bound * flat.softmax(-1)[..., :-1].reshape(exponents.shape)
        duals = multipliers[..., 0, :] - multipliers[..., 1, :]
        return self._state(duals, theta, self.shares(report.counts, task), task)

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """The same multipliers, priced by the new shares."""
        if self.multiplier is not None:
            return self.start(task, counts)
        return self._state(state["duals"], state["theta"], self.shares(counts, task), task)

    def _state(self, duals: Tensor, theta: Tensor, shares: Tensor, task: Task) -> State:
        """Prices of sum_g duals_g (r_g - r), where r is the mean of the r_g by their rows."""
        of_compared = shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
        coefficients = duals - of_compared * duals.sum(-1, keepdim=True)
        return {"duals": duals, "theta": theta, "prices": self.prices(coefficients, shares, task)}
