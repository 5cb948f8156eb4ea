"""How well scores rank and how far they can be trusted as probabilities, by group, from a score histogram.

AUC is P(score of a favourable row > score of another), rows that share a bin counting half: exact for scores rounded
to bins. A group is calibrated if, of its rows with the predicted probability p, the share p is favourable; the expected
calibration error (ECE) is the mean distance over bins of p, weighted by rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ffalm.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from ffalm.fairness.histograms import ScoreHistogram


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities against observed shares, by equal-width bins of the probability; NaN for no rows."""

    rows: Tensor  # (bin, group)
    predicted: Tensor  # (bin, group): mean predicted probability
    observed: Tensor  # (bin, group): share of rows whose label is the favourable one

    @property
    def error(self) -> Tensor:
        """The expected calibration error of each group."""
        distance = self.rows * (self.observed - self.predicted).abs()
        return distance.nan_to_num(0.0).sum(0) / self.rows.sum(0)


def auc(histogram: ScoreHistogram) -> float:
    """The area under the ROC curve of all rows; NaN if they are all favourable, or none is."""
    return float(_area(*(counts.sum(-1) for counts in _by_outcome(histogram))))


def group_auc(histogram: ScoreHistogram) -> Tensor:
    """The area under the ROC curve within each group."""
    return _area(*_by_outcome(histogram))


def group_calibration(histogram: ScoreHistogram, bins: int = 10) -> Calibration:
    """Calibration within each group, of a model with two labels."""
    import torch

    require(bins >= 1, f"Calibration needs at least 1 bin; got {bins}.")
    require(
        histogram.counts.shape[-2] == 2,
        "The score of a model with more than two labels is no probability, so calibration cannot be computed from it.",
    )
    probabilities = histogram.centres().sigmoid()
    favourable, others = _by_outcome(histogram)
    place = (probabilities * bins).long().clamp(max=bins - 1)
    rows, hits, mass = (
        torch.zeros(bins, histogram.groups, dtype=torch.float64).index_add_(0, place, counts)
        for counts in (favourable + others, favourable, (favourable + others) * probabilities.unsqueeze(-1))
    )
    return Calibration(rows, mass / rows, hits / rows)


def _by_outcome(histogram: ScoreHistogram) -> tuple[Tensor, Tensor]:
    """Rows with the favourable label and all others, by (bin, group)."""
    import torch

    cells = torch.as_tensor(histogram.cells()).double()
    favourable = cells[:, histogram.favourable]
    return favourable, cells.sum(1) - favourable


def _area(favourable: Tensor, others: Tensor) -> Tensor:
    below = others.cumsum(0) - others / 2
    return (favourable * below).sum(0) / (favourable.sum(0) * others.sum(0))
