"""The augmented Lagrangian method over clients, for any constraint.

With v the violations of a constraint (`constraints.py`), a client minimises on a batch

    J = L + dual . v + penalty / 2 * |v|^2

and the server ascends on the dual by what the clients' Tallies show, p_i being the client's share of rows:

    dual <- dual + dual_lr(t) * sum_i p_i v_i
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ffalm.algorithms.constraints import Constraint
from ffalm.algorithms.contract import Algorithm, Batch, RoundReport, State, Task
from ffalm.fairness import masked_mean


def gap_duals(value: float, task: Task, counts: Tensor) -> Tensor:
    """A dual for each gap mu_0 - mu_k between groups: one number for two groups, a list for more."""
    gaps = () if task.compared <= 2 else (task.compared - 1,)
    return torch.full((*counts.shape[:-3], *gaps), value, dtype=torch.float64, device=counts.device)


class AugmentedLagrangian(Algorithm, ABC):
    """A subclass says which constraint, and how step and penalty change over the rounds."""

    dual_name: ClassVar[str] = "duals"  # the state's entry

    @property
    def separable(self) -> bool:
        """The dual moves by the mean of the clients' own violations."""
        return True

    @property
    @abstractmethod
    def fairness_constraint(self) -> Constraint:
        """What is driven to 0."""

    @abstractmethod
    def dual_lr_at(self, round: int) -> float:
        """The dual step size of a round, counted from 1."""

    @abstractmethod
    def penalty_of(self, state: State) -> Tensor | float:
        """The coefficient of the quadratic term."""

    def start(self, task: Task, counts: Tensor) -> State:
        """All duals 0."""
        shape = (*counts.shape[:-3], self.fairness_constraint.size(task))
        return {self.dual_name: torch.zeros(shape, dtype=torch.float64, device=counts.device)}

    def objective(self, batch: Batch, state: State) -> Tensor:
        """The augmented Lagrangian of a batch."""
        mean = masked_mean(batch.losses, batch.mask)
        violation = self.fairness_constraint.on_batch(batch, mean)
        priced = (self._duals(state, violation) * violation).sum(-1)
        return mean + priced + self.penalty_of(state) / 2 * (violation**2).sum(-1)

    def dual_step(self, state: State, report: RoundReport) -> State:
        """Gradient ascent on the dual."""
        step = self.dual_lr_at(report.round) * self.measured_violation(report)
        dual = state[self.dual_name]
        return {**state, self.dual_name: dual + step.reshape(dual.shape)}

    def measured_violation(self, report: RoundReport) -> Tensor:
        """sum_i p_i v_i, on the violations' axis; a client that lacks a group counts with violation 0."""
        assert report.tally is not None
        return self.mean_over_clients(self.fairness_constraint.on_tally(report.tally), report)

    @staticmethod
    def mean_over_clients(violation: Tensor, report: RoundReport) -> Tensor:
        """The mean, by size, over the clients that took part."""
        kept = torch.where(report.taking_part.unsqueeze(-1), violation, 0.0)
        return (report.shares().unsqueeze(-1) * kept).sum(-2)

    def _duals(self, state: State, violation: Tensor) -> Tensor:
        """The duals on the violations' axis, which the state of a single dual lacks."""
        dual = state[self.dual_name]
        return dual if dual.ndim == violation.ndim else dual.unsqueeze(-1)
