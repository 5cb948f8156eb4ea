"""How many rows it takes to distinguish a gap from 0: the power of the two-sided test of two proportions.

With rates p_1, p_2 of groups with n_1, n_2 rows and the pooled rate p, a gap d is found at the level 1 - alpha with the
probability `power` once rows in the same shares have grown by the factor

    ((z_(1 - alpha/2) sqrt(p (1-p) (1/n_1 + 1/n_2)) + z_power sqrt(p_1 (1-p_1)/n_1 + p_2 (1-p_2)/n_2)) / d)^2
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from ffalm.errors import require, require_known, require_number
from ffalm.fairness.group_metrics import label_of
from ffalm.fairness.intervals import GAPS, Share, compared_shares

if TYPE_CHECKING:
    from ffalm.fairness.tally import Tally


def rows_needed(
    tally: Tally, metric: str = "dpd", level: float = 0.95, power: float = 0.8, favourable: int = 1
) -> float:
    """Rows, in the Tally's shares, that it takes to distinguish a gap of this size from 0.

    Of several groups it is the gap of the two that are farthest apart. Infinite for no gap, NaN if it is undefined.
    """
    require_known("gap between rates", GAPS, metric)
    for name, value in (("level", level), ("power", power)):
        inside = 0 < require_number(value, f"{name} of a test") < 1
        require(inside, f"The {name} of a test must be between 0 and 1; got {value}.")
    favourable = label_of(tally, favourable)
    pairs = [
        pair
        for shares in compared_shares(tally.compared(), metric, favourable)
        for pair in itertools.combinations(shares, 2)
    ]
    if any(trials == 0 for pair in pairs for _, trials in pair):
        return math.nan
    farthest = max(pairs, key=lambda pair: abs(_rate(pair[0]) - _rate(pair[1])))
    return _factor(*farthest, level, power) * float(tally.count.sum())


def _factor(first: Share, second: Share, level: float, power: float) -> float:
    """By how much rows must grow; below 1 if fewer would do."""
    gap = abs(_rate(first) - _rate(second))
    if gap == 0:
        return math.inf
    pooled = (first[0] + second[0]) / (first[1] + second[1])
    equal = math.sqrt(pooled * (1 - pooled) * (1 / first[1] + 1 / second[1]))
    apart = math.sqrt(sum(_rate(one) * (1 - _rate(one)) / one[1] for one in (first, second)))
    normal = NormalDist()
    return ((normal.inv_cdf(0.5 + level / 2) * equal + normal.inv_cdf(power) * apart) / gap) ** 2


def _rate(share: Share) -> float:
    return share[0] / share[1]
