"""Score histograms: all that group thresholds need to know about rows, as counts that add up over clients.

The score of a row is the logit of the favourable label minus the largest other logit, so that score >= 0 is the
model's own favourable prediction. `fallback` is the label that is predicted instead below a threshold: the most likely
of the others. From the counts follow, exactly, the Tally of any thresholds that are bin edges, and every ranking metric
up to the width of a bin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffalm.errors import require
from ffalm.fairness import score_metrics
from ffalm.fairness.score_metrics import Calibration
from ffalm.fairness.tally import Tally

BINS = 512
_REACH = 16.0  # logits; the first and last bin are open
_EDGES = torch.linspace(-_REACH, _REACH, BINS + 1, dtype=torch.float64)  # powers of two apart: exact in any precision

#: The edge of the model's own decision.
AS_TRAINED = BINS // 2


def edge_value(edge: int) -> float:
    """The smallest score that is predicted favourable at an edge; everybody is at 0, nobody at `BINS`."""
    if edge <= 0 or edge >= BINS:
        return -torch.inf if edge <= 0 else torch.inf
    return float(_EDGES[edge])


def bins_of(scores: Tensor) -> Tensor:
    """The bin of each score, so that bin >= edge is the same as score >= edge_value(edge)."""
    return torch.bucketize(scores.double().nan_to_num(-_REACH - 1), _EDGES[1:-1].to(scores.device), right=True)


def scores_of(logits: Tensor, favourable: int) -> tuple[Tensor, Tensor]:
    """Each row's score, and the label that it gets where it is not predicted favourable."""
    others = logits.clone()
    others[..., favourable] = -torch.inf
    best, fallback = others.max(-1)
    return logits[..., favourable] - best, fallback


@dataclass(frozen=True)
class ScoreHistogram:
    """Counts of shape (bin, fallback, label, group); fallbacks are the labels without the favourable one.

    The last `excluded` groups are not compared: see `Tally`.
    """

    counts: Tensor
    favourable: int = 1
    as_trained: int | None = AS_TRAINED  # the edge of the model's own decision, None where it makes none
    excluded: int = 0

    @classmethod
    def of(
        cls, scores: Tensor, fallback: Tensor, labels: Tensor, groups: Tensor, shape: tuple[int, int], favourable: int
    ) -> ScoreHistogram:
        """The histogram of rows; `shape` is (labels, groups)."""
        label_count, group_count = shape
        own = fallback - (fallback > favourable).long()
        cell = ((bins_of(scores) * (label_count - 1) + own) * label_count + labels) * group_count + groups
        size = BINS * (label_count - 1) * label_count * group_count
        counts = torch.bincount(cell.cpu(), minlength=size)  # on the CPU, where counting is deterministic
        return cls(counts.view(BINS, label_count - 1, label_count, group_count), favourable)

    @classmethod
    def zeros(cls, shape: tuple[int, int], favourable: int) -> ScoreHistogram:
        """The histogram of no rows."""
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
        return (_EDGES[1:] + _EDGES[:-1]) / 2

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
        left = below.sum(-2, keepdim=True) - _from_above(below)
        return chosen + left

    def tally(self, edges: Tensor | list[int]) -> Tally:
        """The Tally of one threshold per group, each a bin edge; losses are not known."""
        thresholds = torch.as_tensor(edges)
        above = torch.arange(len(self.counts)).unsqueeze(-1) >= thresholds  # (bin, group)
        return self._tally(above.double()).rounded()

    def mixed_tally(self, weights: Tensor) -> Tally:
        """The expected Tally where an edge is drawn for each row: `weights` are P(edge), of shape (edge, group)."""
        favourable_share = weights.double().cumsum(0)[:-1]  # P(drawn edge <= bin)
        return self._tally(favourable_share)

    def _tally(self, share: Tensor) -> Tally:
        """The Tally where this share of the rows of each (bin, group) is predicted favourable."""
        counts = self.counts.double()
        labels = counts.shape[-2]
        confusion = counts.new_zeros(labels, labels, self.groups)
        confusion[self.favourable] = (counts.sum(1) * share.unsqueeze(1)).sum(0)
        others = [label for label in range(labels) if label != self.favourable]
        confusion[others] = (counts * (1 - share)[:, None, None, :]).sum(0)
        return Tally(confusion, torch.full((labels, self.groups), torch.nan, dtype=torch.float64), self.excluded)

    def _fallback_correct(self) -> Tensor:
        """Rows by (bin, group) that are correct where they are not predicted favourable."""
        labels = self.counts.shape[-2]
        others = [label for label in range(labels) if label != self.favourable]
        return torch.stack([self.counts[..., own, label, :] for own, label in enumerate(others)]).sum(0)


def _from_above(counts: Tensor) -> Tensor:
    """Sums over bins from each edge up; the first axis grows by one, the edge of nobody."""
    sums = counts.flip(0).cumsum(0).flip(0)
    return torch.cat([sums, torch.zeros_like(sums[:1])])
