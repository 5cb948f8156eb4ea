"""The area under the ROC curve with DeLong's interval, from scores themselves rather than from a histogram."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


def delong(scores: Array, favourable: NDArray[np.bool_]) -> tuple[float, float]:
    """P(score of a favourable row > score of another), ties counting half, and DeLong's variance of it.

    NaN without both kinds; the variance is NaN if there is one row of a kind, whose spread nobody knows.
    """
    above, below = scores[favourable], scores[~favourable]
    m, n = len(above), len(below)
    if m == 0 or n == 0:
        return math.nan, math.nan
    ranks = rankdata(np.concatenate([above, below]))
    wins = (ranks[:m] - rankdata(above)) / n  # of each favourable row against the others
    losses = (ranks[m:] - rankdata(below)) / m
    variance = float(wins.var(ddof=1) / m + losses.var(ddof=1) / n) if min(m, n) > 1 else math.nan
    return float(wins.mean()), variance


def area_interval(area: float, variance: float, level: float = 0.95) -> tuple[float, float]:
    """The interval of an area with this variance, symmetric on the logit scale, so that it stays within 0 and 1.

    NaN if the area is 0 or 1, or its variance is 0 or not known.
    """
    if not 0 < area < 1 or not variance > 0:
        return math.nan, math.nan
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance) / (area * (1 - area))
    logit = math.log(area / (1 - area))
    low, high = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return low, high
