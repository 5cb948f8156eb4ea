"""FPFL: every group's mean loss is held to the overall mean loss by its own multiplier (Galvez et al., 2021).

With d_s = max(0, |L - mu_s| - tolerance) for each group s, a client's objective on a batch is

    J = L + sum_s dual_s d_s + penalty / 2 * sum_s d_s^2,        dual_s <- dual_s + dual_lr * sum_i p_i d_s,i

The FFALM paper's formula lacks the absolute value that its own text and its authors' code have; it is kept under
`constraint="positive_part"`: d_s = max(0, L - mu_s - tolerance), which acts on the better-off group only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ffalm.algorithms.base import Algorithm, Measure, Report, State
from ffalm.algorithms.checks import not_negative
from ffalm.algorithms.registry import register
from ffalm.errors import unknown
from ffalm.fairness import group_means, masked_mean


@register
@dataclass(frozen=True)
class FPFL(Algorithm):
    """Multipliers on each group's distance from the mean loss; takes any number of groups."""

    name: ClassVar[str] = "fpfl"
    title: ClassVar[str] = "FPFL"
    broadcasts: ClassVar[tuple[str, ...]] = ("duals",)
    separable: ClassVar[bool] = True
    duals_by_group: ClassVar[bool] = True
    remedies: ClassVar[str] = "a smaller dual_lr, a smaller penalty or a tolerance above 0"

    penalty: float = 5.0
    dual_lr: float = 0.5
    constraint: Literal["abs", "positive_part"] = "abs"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        not_negative(self, "penalty", "dual_lr", "tolerance")
        if self.constraint not in ("abs", "positive_part"):
            raise unknown("constraint of FPFL", str(self.constraint), ("abs", "positive_part"))

    @property
    def measure(self) -> Measure:
        """The trained model on all local rows, as for FFALM."""
        return Measure.TRAINED

    def start(self, counts: Tensor) -> State:
        """One multiplier a group, all 0."""
        return {"duals": torch.zeros(*counts.shape[:-3], counts.shape[-1], dtype=torch.float64, device=counts.device)}

    def objective(self, losses: Tensor, groups: Tensor, labels: Tensor, mask: Tensor, state: State) -> Tensor:
        """The Lagrangian of a batch with its quadratic penalty."""
        duals = state["duals"]
        mean = masked_mean(losses, mask)
        means, present = group_means(losses, groups, mask, duals.shape[-1])
        distance = self._distance(mean, means, present)
        return mean + (duals * distance).sum(-1) + self.penalty / 2 * (distance**2).sum(-1)

    def moved(self, state: State, report: Report) -> State:
        """Raise each multiplier by the distance that its group still has."""
        assert report.tally is not None
        shares = report.shares()
        means = report.tally.group_losses()
        present = ~means.isnan() & report.taking_part.unsqueeze(-1)
        distance = self._distance(report.tally.mean_loss().nan_to_num(0.0), means.nan_to_num(0.0), present)
        return {"duals": state["duals"] + self.dual_lr * (shares.unsqueeze(-1) * distance).sum(-2)}

    def _distance(self, mean: Tensor, means: Tensor, present: Tensor) -> Tensor:
        """d_s of every group; 0 for a group that is not there, and subgradient 0 at the kink."""
        difference = mean.unsqueeze(-1) - means
        if self.constraint == "abs":
            difference = difference.abs()
        excess = torch.relu(difference - self.tolerance)
        return torch.where(present, excess, torch.zeros_like(excess))
