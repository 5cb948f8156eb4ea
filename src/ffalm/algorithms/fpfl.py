"""FPFL: every group's mean loss is held to the overall mean loss by its own multiplier (Galvez et al., 2021).

With d_s = max(0, |L - mu_s| - tolerance) for each group s, a client's objective on a batch is

    J = L + sum_s dual_s d_s + penalty / 2 * sum_s d_s^2,        dual_s <- dual_s + dual_lr * sum_i p_i d_s,i

The FFALM paper's formula lacks the absolute value that its own text and its authors' code have; it is kept under
`constraint="positive_part"`: d_s = max(0, L - mu_s - tolerance), which acts on the better-off group only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.constraints import LossNearMean
from ffalm.algorithms.contract import Batch, Measure, Prepared, Rows, State
from ffalm.algorithms.lagrangian import AugmentedLagrangian
from ffalm.algorithms.registry import register
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FPFL(AugmentedLagrangian):
    """Multipliers and a penalty on the distance of each group's loss from the mean loss."""

    name = "fpfl"
    title = "FPFL"
    paper = (
        "Rodríguez-Gálvez et al., Enforcing Fairness in Private Federated Learning via the Modified Method of "
        "Differential Multipliers, arXiv:2109.08604, 2021"
    )
    limits = "Constrains mean losses, which need not narrow gaps of predictions. Multipliers never fall."
    broadcasts = ("duals",)
    server_settings = ("dual_lr",)
    duals_by_group = True
    remedies = "a smaller lr, dual_lr or penalty, or a tolerance above 0"
    measure = Measure.TRAINED  # as for FFALM

    penalty: float = setting(5.0, "Coefficient of the quadratic penalty.", least=0)
    dual_lr: float = setting(0.5, "Step size of the multipliers.", least=0)
    constraint: Literal["abs", "positive_part"] = setting(
        "abs", "Distance from the mean loss, or only how far a group is below it."
    )
    tolerance: float = setting(0.0, "Distance from the mean loss that is allowed.", least=0)

    @property
    def fairness_constraint(self) -> LossNearMean:
        """d_s = 0 for every group."""
        return LossNearMean(self.constraint, self.tolerance)

    def dual_lr_at(self, round: int) -> float:
        """Constant."""
        return self.dual_lr

    def penalty_of(self, state: State) -> float:
        """Constant."""
        return self.penalty

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """Which rows count, also by group as (..., row, group), and how many these are."""
        kept = rows.mask.to(dtype)
        groups = torch.arange(rows.task.compared, device=rows.groups.device)
        members = (rows.groups.unsqueeze(-1) == groups) * kept.unsqueeze(-1)
        return {"kept": kept, "count": kept.sum(-1).clamp(min=1), "members": members, "sizes": members.sum(-2)}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """1/n + sum_s pull_s (1/n - [row in s] / n_s), where all groups are compared.

        pull_s = (dual_s + penalty * d_s) * sign(L - mu_s) where d_s > 0, else 0.
        """
        if batch.task.compared < batch.task.groups:
            return super().slopes(batch, state)
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        kept, count, members, sizes = (known[name] for name in ("kept", "count", "members", "sizes"))
        mean = (batch.losses * kept).sum(-1) / count
        means = (batch.losses.unsqueeze(-1) * members).sum(-2) / sizes.clamp(min=1)
        difference = mean.unsqueeze(-1) - means
        distance = self.fairness_constraint.distance(difference, sizes > 0)
        pulls = (self._duals(state, distance) + self.penalty * distance) * difference.sign() * (distance > 0)
        shared = ((1 + pulls.sum(-1)) / count).unsqueeze(-1) * kept
        return shared - ((pulls / sizes.clamp(min=1)).unsqueeze(-2) * members).sum(-1)
