"""Bounds on metrics where some rows' group is not known: over every way of assigning those rows to groups.

The rate of group s, known rows plus assigned ones, is smallest if it gets all rows of unknown group that miss and none
that hit, and largest the other way round:

    low_s = hits_s / (rows_s + misses)        high_s = (hits_s + hits) / (rows_s + hits)

Two groups can be at opposite ends at once. So the largest gap between two of K groups is at most max (high_s - low_t),
which some assignment reaches, and at least max (low_s - high_t, 0): reached (up to one row) where K is 2, and for more
groups a bound that no assignment goes below.
"""

from __future__ import annotations

import itertools
import math

from ffalm.fairness.intervals import Share, compared_shares
from ffalm.fairness.tally import Tally

Ends = list[tuple[float, float]]
Bounds = tuple[float, float]

#: Metrics with bounds.
BOUNDED = ("dpd", "eod", "equalized_odds", "impact_ratio", "predictive_parity", "accuracy_parity")


def bounds(known: Tally, unknown: Tally, metric: str, favourable: int) -> Bounds:
    """The smallest and the largest value of a metric; `unknown` is the Tally of the other rows, in one group."""
    found = []
    for shares, others in zip(*(compared_shares(tally, metric, favourable) for tally in (known, unknown)), strict=True):
        hits, trials = others[0]
        ends = [_ends(share, hits, trials - hits) for share in shares]
        if any(math.isnan(end) for one in ends for end in one):
            return math.nan, math.nan
        found.append(_ratio(ends) if metric == "impact_ratio" else _gap(ends))
    return max(one[0] for one in found), max(one[1] for one in found)


def _ends(share: Share, hits: float, misses: float) -> Bounds:
    own, trials = share
    low = own / (trials + misses) if trials + misses else math.nan
    return low, (own + hits) / (trials + hits) if trials + hits else math.nan


def _gap(ends: Ends) -> Bounds:
    pairs = list(itertools.permutations(ends, 2))
    return max(0.0, *(one[0] - other[1] for one, other in pairs)), max(one[1] - other[0] for one, other in pairs)


def _ratio(ends: Ends) -> Bounds:
    """Of the smallest rate over the largest; a group that is never selected is not the largest, unless all are such."""
    if not any(high for _, high in ends):
        return math.nan, math.nan
    pairs = list(itertools.permutations(ends, 2))
    least = min(one[0] / other[1] for one, other in pairs if other[1])
    return least, min(1.0, *(one[1] / other[0] if other[0] else math.inf for one, other in pairs))
