"""FFALM: fair federated averaging with the augmented Lagrangian method (Dunda and Song, arXiv 2307.04417).

Each client minimises its loss under the constraint that all groups have the same mean loss. With
Delta mu = mu_0 - mu_1, the difference of two groups' mean losses, a client's objective on a batch is

    J = L + dual * Delta mu + penalty / 2 * Delta mu^2

and after local training the server moves the dual by what the clients measured:

    dual <- dual + dual_lr * dual_lr_growth^(t-1) * sum_i p_i Delta mu_i

The paper lets each client move its own copy and averages the copies; since the shares p_i sum to 1 this is the same.
With K groups there are K - 1 gaps mu_0 - mu_k, each with a dual of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ffalm.algorithms.checks import finite, not_negative, positive
from ffalm.algorithms.constraints import LossParity
from ffalm.algorithms.contract import Batch, Measure, Prepared, RoundReport, Rows, State, Task, geometric, scalar
from ffalm.algorithms.lagrangian import AugmentedLagrangian
from ffalm.algorithms.registry import register
from ffalm.errors import require, unknown
from ffalm.settings import setting

_MEASURES = {"full": Measure.TRAINED, "last_batch": Measure.LAST_BATCH, "epoch_mean": Measure.EPOCH}

_SAFE = {"dual_lr": 0.2, "dual_lr_growth": 1.0, "dual_bound": 1.0}
#: Named settings. The paper prints one schedule and its authors' released code has another; `safe` bounds the dual,
#: as the theory assumes and as real data turned out to need. `recommended` is what `ffalm reproduce frontier` chose
#: on the validation rows of two face data sets (docs/results): of all that was tried, `safe`.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released-code": {
        "penalty": 5.0,
        "penalty_growth": 1.05,
        "dual_lr_growth": 1 / 1.05,
        "dual_data": "last_batch",
    },
    "safe": _SAFE,
    "recommended": _SAFE,
}


@register
@dataclass(frozen=True)
class FFALM(AugmentedLagrangian):
    """The augmented Lagrangian method on the gaps of the groups' losses; defaults are the paper's.

    `dual_data` says where the gap of the dual step is measured: the trained model on all local rows ("full"), or,
    free of cost, the last batch or all batches as they were trained on.
    """

    name: ClassVar[str] = "ffalm"
    title: ClassVar[str] = "FFALM"
    paper: ClassVar[str] = (
        "Dunda and Song, Fairness-aware Federated Minimax Optimization with Convergence Guarantee, "
        "arXiv:2307.04417, 2023"
    )
    limits: ClassVar[str] = (
        "Constrains mean losses, which need not narrow gaps of predictions. With the paper's growing dual "
        "step the dual may diverge: the preset safe bounds it."
    )
    default_preset: ClassVar[str | None] = "safe"
    broadcasts: ClassVar[tuple[str, ...]] = ("dual", "penalty")
    server_settings: ClassVar[tuple[str, ...]] = (
        "penalty",
        "dual_lr",
        "dual_lr_growth",
        "penalty_growth",
        "dual_bound",
        "dual_init",
    )
    dual_name: ClassVar[str] = "dual"
    duals_by_group: ClassVar[bool] = True
    remedies: ClassVar[str] = "dual_bound=1.0, dual_lr_growth=1.0 or the preset 'safe'"

    penalty: float = setting(2.0, "Coefficient of the quadratic penalty.")
    dual_lr: float = setting(2.0, "Step size of the dual in round 1.")
    dual_lr_growth: float = setting(1.05, "Factor of the dual step size from round to round.")
    penalty_growth: float = setting(1.0, "Factor of the penalty from round to round.")
    dual_bound: float | None = setting(None, "Largest absolute value of the dual.")
    dual_data: Literal["full", "last_batch", "epoch_mean"] = setting(
        "full", "Rows on which clients measure the gap for the dual step."
    )
    dual_init: float = setting(0.0, "Dual before round 1.")

    def __post_init__(self) -> None:
        not_negative(self, "penalty", "dual_lr")
        positive(self, "dual_lr_growth", "penalty_growth")
        finite(self, "dual_init")
        if self.dual_bound is not None:
            positive(self, "dual_bound")
            require(
                abs(self.dual_init) <= self.dual_bound,
                f"The dual of FFALM starts at {self.dual_init}, beyond its bound of {self.dual_bound}: choose a "
                "smaller dual_init or a larger dual_bound.",
            )
        if self.dual_data not in _MEASURES:
            raise unknown("dual_data of FFALM", str(self.dual_data), _MEASURES)

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """The settings of `PRESETS`."""
        return PRESETS

    @classmethod
    def preset(cls, name: str, **settings: Any) -> FFALM:
        """The settings of a named preset, with others changed on top: `FFALM.preset("safe", penalty=5.0)`."""
        if name not in PRESETS:
            raise unknown("FFALM preset", name, PRESETS)
        return cls(**{**PRESETS[name], **settings})

    @classmethod
    def recommended(cls) -> FFALM:
        """The settings that were chosen on validation rows: fairer at no more than a point of accuracy."""
        return cls.preset("recommended")

    @property
    def measure(self) -> Measure:
        """Where the clients measure their gap."""
        return _MEASURES[self.dual_data]

    @property
    def fairness_constraint(self) -> LossParity:
        """Equal mean losses."""
        return LossParity()

    def start(self, task: Task, counts: Tensor) -> State:
        """The dual (one number for two groups, a list for more) and the penalty of round 1."""
        dual = scalar(self.dual_init, counts)
        if task.compared > 2:
            dual = dual.unsqueeze(-1).repeat(*[1] * dual.ndim, task.compared - 1)
        return {"dual": dual, "penalty": scalar(self.penalty, counts)}

    def dual_lr_at(self, round: int) -> float:
        """dual_lr * dual_lr_growth^(t-1)."""
        return geometric(self.dual_lr, self.dual_lr_growth, round - 1)

    def penalty_of(self, state: State) -> Tensor:
        """It may grow, so it is part of the state."""
        return state["penalty"]

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """The shares of rows, and the gaps' derivatives by each row's loss."""
        return self.fairness_constraint.contrasts(rows, dtype)

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """1/n + (dual + penalty * gap) * (1/n_0 for a row of group 0, -1/n_1 for one of group 1), summed over gaps."""
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        share, contrast = known["share"], known["contrast"]
        if batch.task.compared == 2:
            gap = torch.linalg.vecdot(batch.losses, contrast)
            pull = torch.addcmul(state["dual"], state["penalty"], gap)
            return torch.addcmul(share, pull.unsqueeze(-1), contrast)
        gaps = torch.linalg.vecdot(batch.losses.unsqueeze(-2), contrast)
        pulls = torch.addcmul(state["dual"], state["penalty"].unsqueeze(-1), gaps)
        return share + (pulls.unsqueeze(-1) * contrast).sum(-2)

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Ascend on the dual, and let the penalty grow."""
        penalty = geometric(self.penalty, self.penalty_growth, report.round)
        return {**super().dual_step(state, report), "penalty": torch.full_like(state["penalty"], penalty)}

    def project(self, state: State) -> State:
        """The dual within its bound."""
        if self.dual_bound is None:
            return state
        return {**state, "dual": state["dual"].clamp(-self.dual_bound, self.dual_bound)}
