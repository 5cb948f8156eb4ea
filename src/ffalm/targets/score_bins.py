"""Bins for scores made anywhere, with edges in the scores' own units.

Edges are quantiles, every group counting alike, so that each bin holds about the same share of rows whatever the
scores' scale: probabilities, logits, points. A threshold is one of the edges and can be applied without this package:
predict the favourable outcome if score >= threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import BINS

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_CUTS = BINS - 1


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows as far as thresholds are concerned."""

    scores: Array
    favourable: NDArray[np.bool_]  # whether the true outcome is the favourable one
    groups: Codes  # -1 where the group is not known

    def take(self, rows: Codes) -> ScoredRows:
        """The rows at these numbers."""
        return ScoredRows(self.scores[rows], self.favourable[rows], self.groups[rows])


@dataclass(frozen=True, eq=False)
class ScoreBins:
    """The inner edges of `BINS` bins; edge e is `cuts[e - 1]`."""

    cuts: Array  # ascending; repeated where many rows share a score
    as_trained: int | None  # the edge of the model's own decision, if it has one

    @classmethod
    def of(cls, scores: Array, groups: Codes, decision: float | None) -> ScoreBins:
        """Quantiles of the scores of rows with a known group; `decision` becomes an edge."""
        present = np.unique(groups[groups >= 0])
        quantiles = (np.arange(_CUTS) + 0.5) / _CUTS
        points = []
        for group in present:
            own = np.sort(scores[groups == group])
            points.append(own[(quantiles * len(own)).astype(np.int64)])
        cuts = np.sort(np.concatenate(points))[len(present) // 2 :: len(present)]
        if decision is None:
            return cls(cuts, None)
        place = min(int(np.searchsorted(cuts, decision)), _CUTS - 1)
        cuts[place] = decision
        return cls(cuts, place + 1)

    def value(self, edge: int) -> float:
        """The smallest score that is predicted favourable at an edge; everybody is at 0, nobody at `BINS`."""
        if edge <= 0 or edge >= BINS:
            return -math.inf if edge <= 0 else math.inf
        return float(self.cuts[edge - 1])

    def histogram(self, rows: ScoredRows, groups: int) -> ScoreHistogram:
        """Counts of the rows with a known group, by bin, outcome and group."""
        known = rows.groups >= 0
        bins = np.searchsorted(self.cuts, rows.scores[known], side="right")
        cell = (bins * 2 + rows.favourable[known]) * groups + rows.groups[known]
        counts = torch.from_numpy(np.bincount(cell, minlength=BINS * 2 * groups))
        return ScoreHistogram(counts.view(BINS, 1, 2, groups), 1, self.as_trained)
