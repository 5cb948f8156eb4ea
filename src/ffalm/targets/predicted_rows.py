"""The outputs of a trained model and of a model of the groups for some rows: all that a blind rule is fitted to and
judged by. They never leave a site; only counts by label and group do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.histograms import scores_of
from ffalm.targets.blind import HeldOutRows, gains
from ffalm.targets.judged_rule import best_offset
from ffalm.targets.target import Target


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """The two models' outputs, and what is true of the rows."""

    logits: Tensor
    cells: Tensor  # P(not favourable / favourable, group | x), of shape (row, 2, group)
    y: Tensor
    group: Tensor
    task: Task

    @property
    def shape(self) -> tuple[int, int]:
        """(labels, groups)."""
        return self.task.labels, self.task.groups

    def held_out(self, offset: float) -> HeldOutRows:
        """The rows as the search for a rule counts them."""
        favourable = self.task.favourable
        gain, fallback = gains(self.logits, favourable, offset)
        return HeldOutRows(gain, self.cells, fallback, self.y, self.group, self.shape, favourable)

    def offset(self, target: Target) -> float:
        """The most accurate threshold of the score: it undoes a shift of label shares from clients to these rows."""
        scores, fallback = scores_of(self.logits, self.task.favourable)
        favourable = self.task.favourable
        return best_offset(ScoreHistogram.of(scores, fallback, self.y, self.group, self.shape, favourable), target)

    def tally(self, predictions: Tensor) -> Tally:
        """The Tally of predictions of these rows; losses are not known."""
        unknown = torch.full(predictions.shape, torch.nan)
        return Tally.of(predictions, unknown, self.y, self.group, self.shape).excluding(self.task.excluded)

    def known(self) -> Tensor:
        """Rows by (label, group) whose own group is the most likely one of those that are compared."""
        likely = self.cells.sum(1)[:, : self.task.compared].argmax(-1)
        own = likely == self.group
        place = self.y[own] * self.task.groups + self.group[own]
        return torch.bincount(place, minlength=self.task.labels * self.task.groups).view(self.shape)


def cell_shares(counts: Tensor, favourable: int) -> Tensor:
    """P(not favourable / favourable, group) from rows by (label, group)."""
    own = counts[favourable].double()
    return torch.stack([counts.sum(0) - own, own]) / counts.sum()


def cells_of(logits: Tensor, groups: int) -> Tensor:
    """P(cell | x) of shape (row, 2, group) from the logits of a model of the groups."""
    return logits.double().softmax(-1).view(-1, 2, groups)


def known_share(known: Tensor, rows: Tensor, compared: int) -> float:
    """The share of the rows of compared groups whose group is predicted correctly, from counts by (label, group)."""
    return float(known[:, :compared].sum() / rows[:, :compared].sum().double())
