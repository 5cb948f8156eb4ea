"""FairALM: an augmented Lagrangian that is linear in the groups' losses (Lokhande et al., ECCV 2020).

With mu_s a group's mean loss, a client's objective on a batch is, in the federated form of the FFALM paper's authors,

    J = L + dual * (mu_0 - mu_1) + step * (mu_0 + mu_1),        dual <- dual + step * sum_i p_i (mu_0 - mu_1)_i

and `step` is multiplied by `step_growth` after each round. Both groups keep a weight of at least 0 as long as
|dual| <= step. With K groups there is such a term, with a dual of its own, for group 0 and each other.

The central algorithm of the paper, which moves the dual after every batch, is this with one client, local_steps=1,
dual_data="last_batch" and step_growth=1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ffalm.algorithms.constraints import LossParity
from ffalm.algorithms.contract import Batch, Measure, Prepared, RoundReport, Rows, State, Task, geometric, scalar
from ffalm.algorithms.lagrangian import AugmentedLagrangian, gap_duals
from ffalm.algorithms.registry import register
from ffalm.fairness import Tally
from ffalm.fairness.groups import equal_weights
from ffalm.settings import setting

_MEASURES = {"full": Measure.TRAINED, "last_batch": Measure.LAST_BATCH}


@register
@dataclass(frozen=True)
class FairALM(AugmentedLagrangian):
    """Equal mean losses by a dual and a weight on the groups' losses, with one step size. step=0 is FedAvg.

    `labels="favourable"` compares losses of favourable rows alone, as the authors' published code does (equal
    opportunity). `dual_data` is as for FFALM.
    """

    name = "fairalm"
    title = "FairALM"
    paper = "Lokhande et al., ECCV 2020 (arXiv 2004.01355)"
    limits = "Compares mean losses, not rates: equal losses need not mean equal rates."
    broadcasts = ("dual", "step")
    server_settings = ("step", "step_growth")
    dual_name = "dual"
    duals_by_group = True
    remedies = "a smaller step or a smaller lr"

    step: float = setting(1.0, "Step size of the dual, and weight of the sum of the groups' losses.", least=0)
    step_growth: float = setting(1 / 1.01, "Factor of the step from round to round.", above=0)
    labels: Literal["all", "favourable"] = setting("all", "Rows whose losses are compared.")
    dual_data: Literal["full", "last_batch"] = setting(
        "full", "Rows on which clients measure the gap for the dual step."
    )

    @property
    def measure(self) -> Measure:
        """Where the clients measure their gap."""
        return _MEASURES[self.dual_data]

    @property
    def tells_gaps(self) -> bool:
        """Where all rows are compared."""
        return self.labels == "all"

    @property
    def tells_gaps_of_cells(self) -> bool:
        """Of favourable rows alone a group is a single cell."""
        return self.labels == "favourable"

    @property
    def fairness_constraint(self) -> LossParity:
        """Equal mean losses."""
        return LossParity()

    def dual_lr_at(self, round: int) -> float:
        """step * step_growth^(t-1)."""
        return geometric(self.step, self.step_growth, round - 1)

    def penalty_of(self, state: State) -> float:
        """There is no quadratic term."""
        return 0.0

    def start(self, task: Task, counts: Tensor) -> State:
        """The dual, one number for two groups and a list for more, and the step of round 1."""
        return {"dual": gap_duals(0.0, task, counts), "step": scalar(self.step, counts)}

    def objective(self, batch: Batch, state: State) -> Tensor:
        """Linear in the losses."""
        return (self.slopes(batch, state) * batch.losses).sum(-1)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """The shares of rows, and the derivatives of mu_0 - mu_k by each row's loss."""
        counted = rows
        if self.labels == "favourable":
            counted = rows._replace(mask=rows.mask & (rows.labels == rows.task.favourable))
        contrast = self.fairness_constraint.contrasts(counted, dtype)["contrast"]
        return {"share": equal_weights(rows.mask, dtype), "contrast": contrast}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """1/n + (step + dual)/n_0 for a row of group 0, 1/n + (step - dual)/n_1 for one of group 1."""
        known = batch.prepared or self.prepare(batch.rows, batch.losses.dtype)
        share, contrast = known["share"], known["contrast"]
        dual, step = state["dual"].unsqueeze(-1), state["step"].unsqueeze(-1)
        if batch.task.compared == 2:
            return share + dual * contrast + step * contrast.abs()
        return share + (dual * contrast + step.unsqueeze(-1) * contrast.abs()).sum(-2)

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Ascend on the dual by the compared rows, and change the step."""
        assert report.tally is not None
        if self.labels == "favourable":
            report = replace(report, tally=_of_label(report.tally, report.favourable))
        step = geometric(self.step, self.step_growth, report.round)
        return {**super().dual_step(state, report), "step": torch.full_like(state["step"], step)}


def _of_label(tally: Tally, label: int) -> Tally:
    """The part of a Tally that rows of one label have."""
    of = slice(label, label + 1)
    return Tally(tally.confusion[..., of, :], tally.loss[..., of, :], tally.excluded)
