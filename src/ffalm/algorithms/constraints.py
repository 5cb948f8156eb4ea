"""Fairness constraints as objects: what must be 0, on a batch (where it is differentiable) and in a Tally.

A constraint gives one violation per multiplier, on the last axis. An algorithm that prices violations (`lagrangian.py`)
takes any constraint, so a new notion of fairness is one small class here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ffalm.algorithms.contract import Batch, Prepared, Rows, Task
from ffalm.fairness import Tally, group_means, masked_mean


class Constraint(Protocol):
    """What an augmented Lagrangian drives to 0."""

    def size(self, task: Task) -> int:
        """How many violations, hence multipliers, there are."""
        ...

    def on_batch(self, batch: Batch, mean_loss: Tensor) -> Tensor:
        """The violations on a batch, (..., size); 0 if the batch lacks the groups that one compares."""
        ...

    def on_tally(self, tally: Tally) -> Tensor:
        """The violations that Tallies show, (..., size); 0 if a Tally lacks the groups that one compares."""
        ...


@dataclass(frozen=True)
class LossParity:
    """All groups have the mean loss of group 0: v_k = mu_0 - mu_k for k = 1..K-1. Of two groups it is Delta mu."""

    def size(self, task: Task) -> int:
        """The number of groups minus 1."""
        return task.compared - 1

    def on_batch(self, batch: Batch, mean_loss: Tensor) -> Tensor:
        """mu_0 - mu_k on the batch."""
        means, present = group_means(batch.losses, batch.groups, batch.mask, batch.task.compared)
        gaps = means[..., :1] - means[..., 1:]
        return torch.where(present[..., :1] & present[..., 1:], gaps, torch.zeros_like(gaps))

    def on_tally(self, tally: Tally) -> Tensor:
        """mu_0 - mu_k of the counted rows."""
        means = tally.compared().group_losses()
        return (means[..., :1] - means[..., 1:]).nan_to_num(0.0)

    def contrasts(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """1/n of each row as `share`; and as `contrast` the violations' derivatives by each row's loss.

        That is 1/n_0 for a row of group 0 and -1/n_k for one of group k, 0 if the batch lacks either; of shape
        (..., row) for two groups and (..., K-1, row) for more.
        """
        kept = rows.mask.to(dtype)
        share = kept * kept.sum(-1, keepdim=True).clamp(min=1).reciprocal()
        members = [kept * (rows.groups == group) for group in range(rows.task.compared)]
        if len(members) == 2:
            return {"share": share, "contrast": _contrast(*members)}
        return {"share": share, "contrast": torch.stack([_contrast(members[0], other) for other in members[1:]], -2)}


@dataclass(frozen=True)
class LossNearMean:
    """Every group's mean loss is near that of all compared rows: v_s = max(0, |L - mu_s| - tolerance), one per group.

    `kind="positive_part"` drops the absolute value and so acts on better-off groups only.
    """

    kind: Literal["abs", "positive_part"] = "abs"
    tolerance: float = 0.0

    def size(self, task: Task) -> int:
        """One per group."""
        return task.compared

    def on_batch(self, batch: Batch, mean_loss: Tensor) -> Tensor:
        """The distances on the batch."""
        task = batch.task
        if task.compared < task.groups:
            mean_loss = masked_mean(batch.losses, batch.mask.bool() & (batch.groups < task.compared))
        means, present = group_means(batch.losses, batch.groups, batch.mask, batch.task.compared)
        return self.distance(mean_loss.unsqueeze(-1) - means, present)

    def on_tally(self, tally: Tally) -> Tensor:
        """The distances of the counted rows."""
        tally = tally.compared()
        means = tally.group_losses()
        return self.distance(tally.mean_loss().nan_to_num(0.0).unsqueeze(-1) - means.nan_to_num(0.0), ~means.isnan())

    def distance(self, difference: Tensor, present: Tensor) -> Tensor:
        """v_s from L - mu_s: 0 for a group that is not there, and subgradient 0 at the kink."""
        if self.kind == "abs":
            difference = difference.abs()
        excess = torch.relu(difference - self.tolerance)
        return torch.where(present, excess, torch.zeros_like(excess))


def group_shares(rows: Rows, dtype: torch.dtype) -> Tensor:
    """n_k / n for each compared group of a batch, (..., group)."""
    kept = rows.mask.to(dtype)
    members = [(kept * (rows.groups == group)).sum(-1) for group in range(rows.task.compared)]
    return torch.stack(members, -1) / kept.sum(-1, keepdim=True).clamp(min=1)


def nonnegative_pulls(pulls: Tensor, shares: Tensor) -> Tensor:
    """The pulls a_k = dual_k + penalty * v_k of `LossParity`, so small that no row's weight is negative.

    A row weighs 1/n + sum_k a_k / n_0 in group 0 and 1/n - a_k / n_k in group k. So a_k <= n_k / n, and if the sum
    is below -n_0 / n the negative pulls shrink by one factor. Of two groups: a clamped to [-n_0/n, n_1/n].
    """
    pulls = torch.where(shares[..., 1:] > 0, torch.minimum(pulls, shares[..., 1:]), 0.0)
    up, down = pulls.clamp(min=0), pulls.clamp(max=0)
    room = shares[..., :1] + up.sum(-1, keepdim=True)
    return up + down * (room / (-down.sum(-1, keepdim=True)).clamp(min=1e-30)).clamp(max=1)


def _contrast(first: Tensor, second: Tensor) -> Tensor:
    """The derivative of mean(first) - mean(second) by each row's loss; 0 if either has no row."""
    rows = [member.sum(-1, keepdim=True) for member in (first, second)]
    both = (rows[0] > 0) & (rows[1] > 0)
    first_share, second_share = (both / count.clamp(min=1) for count in rows)
    return torch.addcmul(first * first_share, second, second_share, value=-1)
