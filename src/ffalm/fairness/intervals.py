"""Confidence intervals of metrics over the sampling of the evaluated rows, from the Tally alone.

Proportions get Wilson's score interval; differences of two proportions Newcombe's and their ratios that of Donner and
Zou, which are built from it. They have about their nominal coverage in small groups and at rates near 0 and 1, where
the normal approximation does not. The largest difference between several proportions, their smallest ratio, and the
smallest of them get intervals built from these. All other metrics are bootstrapped: resampling the rows changes nothing
but the Tally's counts, so drawing the counts from a multinomial is the bootstrap over rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import look_up, require, short_repr
from ffalm.fairness import group_metrics
from ffalm.fairness.array_library import library
from ffalm.randomness import Purpose, generator

if TYPE_CHECKING:
    from torch import Tensor

    from ffalm.fairness.tally import Tally

Share = tuple[float, float]
"""Successes and trials."""

Rate = float | NDArray[np.float64]
Estimates = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Values, and both ends of the interval of each."""

_DRAWS = 2000
_OF_LOSSES = frozenset({"loss", "loss_gap"})

#: Metrics that are the largest difference between rates of two groups.
GAPS = ("dpd", "eod", "equalized_odds", "accuracy_parity")


def wilson(successes: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; NaN for no trials."""
    if trials == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def newcombe(first: Share, second: Share, level: float = 0.95) -> tuple[float, float]:
    """Newcombe's hybrid score interval of the difference of two proportions, each as (successes, trials)."""
    low, high = _differences(*_with_ends([first, second], level))
    return float(low[0, 1]), float(high[0, 1])


def interval(tally: Tally, metric: str, level: float = 0.95, favourable: int = 1) -> tuple[float, float]:
    """The interval of a metric by its name; (NaN, NaN) if the metric itself is undefined."""
    defined = look_up("metric", metric, group_metrics.METRICS)
    require(metric not in _OF_LOSSES, f"A Tally holds sums of losses, not their spread: {metric!r} has no interval.")
    between = isinstance(level, float | int | np.floating) and 0 < level < 1
    require(between, f"The level of an interval must be between 0 and 1; got {short_repr(level)}.")
    favourable = group_metrics.label_of(tally, favourable)
    if math.isnan(float(defined(tally, favourable))):
        return math.nan, math.nan
    if metric == "accuracy":
        right = group_metrics.accuracy(tally) * tally.count.sum()
        return wilson(float(right), float(tally.count.sum()), level)
    tally = tally.compared()
    if metric == "worst_group_accuracy":
        return _smallest(_right(tally), level)
    if metric == "impact_ratio":
        chosen = tally.confusion[favourable].sum(0)
        return _smallest_ratio(_shares(chosen, tally.count.sum(0)), level)
    if metric in (*GAPS, "predictive_parity"):  # the latter given how many rows were selected
        return _largest(compared_shares(tally, metric, favourable), level)
    return _bootstrap(tally, metric, level, favourable)


def compared_shares(tally: Tally, metric: str, favourable: int) -> list[list[Share]]:
    """For each compared label the groups' shares of which a metric is the largest difference, or the smallest ratio."""
    chosen, counts = tally.confusion[favourable], tally.count  # by label and group
    if metric == "predictive_parity":
        return [_shares(chosen[favourable], chosen.sum(0))]
    if metric in ("dpd", "impact_ratio"):
        return [_shares(chosen.sum(0), counts.sum(0))]
    if metric == "eod":
        return [_shares(chosen[favourable], counts[favourable])]
    if metric == "equalized_odds":
        return [_shares(*of_label) for of_label in zip(chosen, counts, strict=True)]
    return [_right(tally)]


def farthest(shares: Sequence[Sequence[Share]]) -> tuple[int, int, int]:
    """Of several lists of shares, the list and the two places in it that are farthest apart, the larger one first."""
    values = [[hits / trials if trials else math.nan for hits, trials in own] for own in shares]
    spreads = [max(own) - min(own) for own in values]
    place = spreads.index(max(spreads))
    return place, values[place].index(max(values[place])), values[place].index(min(values[place]))


def _right(tally: Tally) -> list[Share]:
    """The rows of each group that were predicted correctly."""
    rows = tally.count.sum(0)
    right = group_metrics.group_accuracy(tally) * rows
    return _shares(library(right).nan_to_num(right, nan=0.0), rows)


def _shares(hits: Tensor, trials: Tensor) -> list[Share]:
    return list(zip(hits.tolist(), trials.tolist(), strict=True))


def _largest(compared: Sequence[Sequence[Share]], level: float) -> tuple[float, float]:
    """The interval of the largest absolute difference between two shares of a list.

    Its upper end is the largest upper end of any pair, so it covers the pair that is truly farthest apart. Some of many
    pairs differ by chance, so its lower end has a Bonferroni correction for the number of pairs. A bootstrapped largest
    difference would never shrink to 0, even if all groups are equal.
    """
    corrected = for_all_pairs(level, [len(shares) for shares in compared])
    ends = [largest_difference(*(_with_ends(shares, one) for one in (level, corrected))) for shares in compared]
    return max(low for low, _ in ends), max(high for _, high in ends)


def for_all_pairs(level: float, sizes: Sequence[int]) -> float:
    """The level at which intervals of all pairs within lists of these sizes hold at once (Bonferroni)."""
    return 1 - (1 - level) / max(1, sum(math.comb(size, 2) for size in sizes))


def largest_difference(estimates: Estimates, corrected: Estimates) -> tuple[float, float]:
    """The interval of the largest difference of two of several values, from their own intervals: see `_largest`.

    The values with their ends at the level of the result, and at the level that holds for all pairs of them.
    """
    low, high = _differences(*corrected)[0].max(), _differences(*estimates)[1]
    return float(np.maximum(0.0, low)), float(high[~np.eye(len(high), dtype=bool)].max())


def _smallest(shares: Sequence[Share], level: float) -> tuple[float, float]:
    """The interval of the smallest of several shares, by the same argument."""
    low = min(wilson(*share, level)[0] for share in shares)
    return low, min(wilson(*share, 1 - (1 - level) / len(shares))[1] for share in shares)


def ratio_interval(first: Share, second: Share, level: float = 0.95) -> tuple[float, float]:
    """The interval of the ratio of two proportions, each as (successes, trials), by their Wilson intervals.

    Donner and Zou's (Statistical Methods in Medical Research 21:347, 2012); NaN for no trials. Katz's log interval has
    no width if both rates are 1, and misses far too often if they are high.
    """
    if first[1] == 0 or second[1] == 0:
        return math.nan, math.nan
    rate, other = first[0] / first[1], second[0] / second[1]
    (low, high), (others_low, others_high) = wilson(*first, level), wilson(*second, level)
    inverse = float(ratio_low(other, others_low, rate, high))
    return float(ratio_low(rate, low, other, others_high)), 1 / inverse if inverse > 0 else math.inf


def ratio_low(rate: Rate, low: Rate, other: Rate, high: Rate) -> NDArray[np.float64]:
    """The lower end of rate / other, from the lower end of the one and the upper end of the other.

    It is R = (pq - sqrt((pq)^2 - AB)) / B with A = l (2p - l) and B = h (2q - h), written without the difference; the
    upper end is one over the lower end of other / rate. 0 if the rate is.
    """
    near, far = np.maximum(0.0, low * (2 * rate - low)), high * (2 * other - high)
    product = np.asarray(rate * other, dtype=np.float64)
    reach = product + np.sqrt(np.maximum(0.0, product * product - near * far))
    return np.divide(near, reach, out=np.zeros_like(reach), where=reach > 0)


def _smallest_ratio(shares: Sequence[Share], level: float) -> tuple[float, float]:
    """The interval of the smallest ratio of two shares of a list, by the argument of `_largest`."""
    pairs = list(itertools.permutations(shares, 2))
    low = min(ratio_interval(*pair, level)[0] for pair in pairs)
    corrected = 1 - (1 - level) / (len(pairs) / 2)
    return low, min(1.0, *(ratio_interval(*pair, corrected)[1] for pair in pairs))


def _with_ends(shares: Sequence[Share], level: float) -> Estimates:
    """Shares with Wilson's intervals; NaN for no trials."""
    values = np.array([hits / trials if trials else math.nan for hits, trials in shares])
    return values, np.array([wilson(*share, level) for share in shares])


def _differences(values: NDArray[np.float64], ends: NDArray[np.float64]) -> Estimates:
    """Both ends of the interval of each value (down) minus each other one (across), by their own intervals.

    This is Newcombe's interval where these are Wilson's, and in general Zou and Donner's (MOVER).
    """
    below, above = values - ends[:, 0], ends[:, 1] - values
    differences = values[:, None] - values
    return differences - np.hypot(below[:, None], above), differences + np.hypot(above[:, None], below)


def _bootstrap(tally: Tally, metric: str, level: float, favourable: int) -> tuple[float, float]:
    """Percentiles of the metric over resampled rows, with group sizes fixed.

    Noisy counts need not be whole, so group sizes are rounded. NaN if the metric is undefined in every resample.
    """
    counts = tally.confusion if isinstance(tally.confusion, np.ndarray) else tally.confusion.numpy(force=True)
    draws = generator(0, Purpose.BOOTSTRAP)
    resampled = np.zeros((_DRAWS, *counts.shape), dtype=np.int64)
    for group in np.flatnonzero(counts.sum((0, 1))):
        cells = counts[..., group]
        drawn = draws.multinomial(round(cells.sum()), cells.ravel() / cells.sum(), size=_DRAWS)
        resampled[..., group] = drawn.reshape(_DRAWS, *cells.shape)
    many = replace(tally, confusion=cast("Tensor", resampled))
    values = np.asarray(group_metrics.METRICS[metric](many, favourable))
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return math.nan, math.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
