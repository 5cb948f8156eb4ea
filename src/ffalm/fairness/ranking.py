"""The area under the ROC curve with DeLong's interval, from scores themselves rather than from a histogram."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


def auc_interval(scores: Array, favourable: NDArray[np.bool_], level: float = 0.95) -> tuple[float, float, float]:
    """P(score of a favourable row > score of another), ties counting half, and its interval; NaN without both kinds.

    The variance is DeLong's; the interval is symmetric on the logit scale, so that it stays within 0 and 1.
    """
    above, below = scores[favourable], scores[~favourable]
    m, n = len(above), len(below)
    if m == 0 or n == 0:
        return math.nan, math.nan, math.nan
    ranks = rankdata(np.concatenate([above, below]))
    wins = (ranks[:m] - rankdata(above)) / n  # of each favourable row against the others
    losses = (ranks[m:] - rankdata(below)) / m
    area = float(wins.mean())
    variance = (wins.var(ddof=1) / m if m > 1 else 0.0) + (losses.var(ddof=1) / n if n > 1 else 0.0)
    if not 0 < area < 1 or variance == 0:
        return area, math.nan, math.nan
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance) / (area * (1 - area))
    logit = math.log(area / (1 - area))
    low, high = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return area, low, high
