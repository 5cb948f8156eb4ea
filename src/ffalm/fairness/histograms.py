"""Score histograms: all that group thresholds need to know about rows, as counts that add up over clients.

The score of a row is the logit of the favourable label minus the largest other logit, so that score >= 0 is the
model's own favourable prediction. `fallback` is the label that is predicted instead below a threshold: the most likely
of the others. From the counts follow, exactly, the Tally of any thresholds that are bin edges, and every ranking metric
up to the width of a bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import require
from ffalm.fairness import score_metrics
from ffalm.fairness.array_library import double, library
from ffalm.fairness.score_metrics import Calibration
from ffalm.fairness.tally import Tally

if TYPE_CHECKING:
    from torch import Tensor

BINS = 512
_REACH = 16.0  # logits; the first and last bin are open
_EDGES = np.linspace(-_REACH, _REACH, BINS + 1)  # powers of two apart: exact in any precision

#: The edge of the model's own decision.
AS_TRAINED = BINS // 2


def edge_value(edge: int) -> float:
    """The smallest score that is predicted favourable at an edge; everybody is at 0, nobody at `BINS`."""
    if edge <= 0 or edge >= BINS:
        return -math.inf if edge <= 0 else math.inf
    return float(_EDGES[edge])


def edge_of(value: float) -> int:
    """The last edge that a score reaches."""
    return int(np.searchsorted(_EDGES[1:-1], value, side="right"))


def bins_of(scores: Tensor) -> Tensor:
    """The bin of each score, so that bin >= edge is the same as score >= edge_value(edge)."""
    import torch

    edges = torch.from_numpy(_EDGES[1:-1]).to(scores.device)
    return torch.bucketize(scores.double().nan_to_num(-_REACH - 1), edges, right=True)


def scores_of(logits: Tensor, favourable: int) -> tuple[Tensor, Tensor]:
    """Each row's score, and the label that it gets if it is not predicted favourable."""
    others = logits.clone()
    others[..., favourable] = -math.inf
    best, fallback = others.max(-1)
    return logits[..., favourable] - best, fallback


@dataclass(frozen=True)
class ScoreHistogram:
    """Counts of shape (bin, fallback, label, group); fallbacks are the labels without the favourable one.

    Counts that were read from a file are numpy arrays. The last `excluded` groups are not compared: see `Tally`.
    """

    counts: Tensor
    favourable: int = 1
    as_trained: int | None = AS_TRAINED  # the edge of the model's own decision, None if it makes none
    excluded: int = 0

    @classmethod
    def of(
        cls, scores: Tensor, fallback: Tensor, labels: Tensor, groups: Tensor, shape: tuple[int, int], favourable: int
    ) -> ScoreHistogram:
        """The histogram of rows; `shape` is (labels, groups)."""
        import torch

        label_count, group_count = shape
        own = fallback - (fallback > favourable).long()
        cell = ((bins_of(scores) * (label_count - 1) + own) * label_count + labels) * group_count + groups
        size = BINS * (label_count - 1) * label_count * group_count
        counts = torch.bincount(cell.cpu(), minlength=size)  # on the CPU, where counting is deterministic
        return cls(counts.view(BINS, label_count - 1, label_count, group_count), favourable)

    @classmethod
    def zeros(cls, shape: tuple[int, int], favourable: int) -> ScoreHistogram:
        """The histogram of no rows."""
        import torch

        labels, groups = shape
        return cls(torch.zeros(BINS, labels - 1, labels, groups, dtype=torch.int64), favourable)

    def __add__(self, other: ScoreHistogram) -> ScoreHistogram:
        require(self.favourable == other.favourable, "Histograms of different favourable labels cannot be added.")
        excluded = max(self.excluded, other.excluded)
        return replace(self, counts=self.counts + other.counts, excluded=excluded)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.counts.shape[-1]

    def compared(self) -> ScoreHistogram:
        """The rows of the groups that are compared, and no others."""
        return replace(self, counts=self.counts[..., : self.groups - self.excluded], excluded=0)

    def centres(self) -> Tensor:
        """The score in the middle of each bin; of the open ones, half a bin from their edge."""
        import torch

        return torch.from_numpy((_EDGES[1:] + _EDGES[:-1]) / 2)

    def auc(self) -> float:
        """The area under the ROC curve of the favourable label against all others."""
        return score_metrics.auc(self)

    def group_auc(self) -> Tensor:
        """The same within each group."""
        return score_metrics.group_auc(self)

    def calibration(self, bins: int = 10) -> Calibration:
        """Predicted probabilities against observed shares within each group, of a model with two labels."""
        return score_metrics.group_calibration(self, bins)

    def cells(self) -> Tensor:
        """Rows by (bin, label, group), whatever their fallback."""
        return self.counts.sum(-3)

    def at_least(self) -> Tensor:
        """Rows with a score from each edge up, by (edge, label, group), the edge of nobody included."""
        return _from_above(self.cells())

    def correct(self) -> Tensor:
        """Rows predicted correctly at each edge, by (edge, group)."""
        cells = self.cells()
        below = self._fallback_correct()
        chosen = _from_above(cells[..., self.favourable, :])
        left = below.sum(0) - _from_above(below)
        return chosen + left

    def tally(self, edges: Tensor | list[int]) -> Tally:
        """The Tally of one threshold per group, each a bin edge; losses are not known."""
        xp = library(self.counts)
        above = xp.arange(len(self.counts))[:, None] >= xp.asarray(edges)  # (bin, group)
        return self._tally(double(above)).rounded()

    def mixed_tally(self, weights: Tensor | NDArray[np.float64]) -> Tally:
        """The expected Tally if an edge is drawn for each row: `weights` are P(edge), of shape (edge, group)."""
        favourable_share = weights.cumsum(0)[:-1]  # P(drawn edge <= bin)
        return self._tally(library(self.counts).asarray(favourable_share))

    def _tally(self, share: Tensor) -> Tally:
        """The Tally if this share of the rows of each (bin, group) is predicted favourable."""
        xp, counts = library(self.counts), double(self.counts)
        labels = counts.shape[-2]
        confusion = xp.zeros((labels, labels, self.groups), dtype=xp.float64)
        confusion[self.favourable] = (counts.sum(1) * share[:, None]).sum(0)
        others = [label for label in range(labels) if label != self.favourable]
        confusion[others] = (counts * (1 - share)[:, None, None, :]).sum(0)
        return Tally(confusion, xp.full((labels, self.groups), math.nan, dtype=xp.float64), self.excluded)

    def _fallback_correct(self) -> Tensor:
        """Rows by (bin, group) that are correct if they are not predicted favourable."""
        labels = self.counts.shape[-2]
        others = [label for label in range(labels) if label != self.favourable]
        right = library(self.counts).stack([self.counts[..., own, label, :] for own, label in enumerate(others)])
        return right.sum(0)  # type: ignore[no-any-return]


def _from_above(counts: Tensor) -> Tensor:
    """Sums over bins from each edge up; the first axis grows by one, the edge of nobody."""
    xp = library(counts)
    sums = xp.flip(xp.flip(counts, (0,)).cumsum(0), (0,))
    return xp.concatenate([sums, xp.zeros_like(sums[:1])])  # type: ignore[no-any-return]
