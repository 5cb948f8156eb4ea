"""Confidence intervals of metrics over the sampling of the evaluated rows, from the Tally alone.

Shares get Wilson's score interval and differences of two shares Newcombe's, built from it; both keep their promise on
small groups where the textbook interval does not. Everything else is bootstrapped: a Tally's counts are all that a
resample of the rows could change, so drawing them from a multinomial is the bootstrap over rows, without the rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ffalm.errors import require, unknown
from ffalm.fairness import metrics
from ffalm.randomness import Purpose, generator

if TYPE_CHECKING:
    from ffalm.fairness.tally import Tally

_DRAWS = 2000
_OF_LOSSES = frozenset({"loss", "loss_gap"})


def wilson(successes: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share; NaN for no trials."""
    if trials == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def newcombe(first: tuple[float, float], second: tuple[float, float], level: float = 0.95) -> tuple[float, float]:
    """Newcombe's hybrid score interval of a difference of two shares, each given as (successes, trials)."""
    (low_1, high_1), (low_2, high_2) = wilson(*first, level), wilson(*second, level)
    if math.isnan(low_1) or math.isnan(low_2):
        return math.nan, math.nan
    share_1, share_2 = first[0] / first[1], second[0] / second[1]
    difference = share_1 - share_2
    below = math.hypot(share_1 - low_1, high_2 - share_2)
    above = math.hypot(high_1 - share_1, share_2 - low_2)
    return difference - below, difference + above


def interval(tally: Tally, metric: str, level: float = 0.95, favourable: int = 1) -> tuple[float, float]:
    """The interval of a metric by its name; (NaN, NaN) where the metric itself is undefined."""
    if metric not in metrics.METRICS:
        raise unknown("metric", metric, metrics.METRICS)
    require(metric not in _OF_LOSSES, f"A Tally holds sums of losses, not their spread: {metric!r} has no interval.")
    require(0 < level < 1, f"The level of an interval lies between 0 and 1; got {level}.")
    if math.isnan(float(metrics.METRICS[metric](tally, favourable))):
        return math.nan, math.nan
    if metric == "accuracy":
        right = metrics.accuracy(tally) * tally.count.sum()
        return wilson(float(right), float(tally.count.sum()), level)
    shares = _two_shares(tally, metric, favourable)
    if shares is not None:
        return _folded(newcombe(*shares, level))
    return _bootstrap(tally, metric, level, favourable)


def _two_shares(tally: Tally, metric: str, favourable: int) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The (successes, trials) of the two groups whose shares a metric compares; None where it is no such metric."""
    counts = tally.count
    if counts.shape[-1] != 2:
        return None
    if metric == "dpd":
        hits, trials = tally.confusion[favourable].sum(0), counts.sum(0)
    elif metric == "eod":
        hits, trials = tally.confusion[favourable, favourable], counts[favourable]
    elif metric == "accuracy_parity":
        hits, trials = metrics.group_accuracy(tally) * counts.sum(0), counts.sum(0)
    else:
        return None
    return (float(hits[0]), float(trials[0])), (float(hits[1]), float(trials[1]))


def _folded(signed: tuple[float, float]) -> tuple[float, float]:
    """The interval of an absolute difference from that of the signed one."""
    low, high = signed
    if low <= 0 <= high:
        return 0.0, max(-low, high)
    return min(abs(low), abs(high)), max(abs(low), abs(high))


def _bootstrap(tally: Tally, metric: str, level: float, favourable: int) -> tuple[float, float]:
    """Percentiles of the metric over resampled rows, groups kept at their sizes as an auditor would.

    Counts with noise need not be whole, so a group's size is rounded. Where rows are so few that the metric is
    undefined in every resample, so are its percentiles.
    """
    counts = tally.confusion.numpy(force=True)
    draws = generator(0, Purpose.BOOTSTRAP)
    resampled = np.zeros((_DRAWS, *counts.shape), dtype=np.int64)
    for group in np.flatnonzero(counts.sum((0, 1))):
        cells = counts[..., group]
        drawn = draws.multinomial(round(cells.sum()), cells.ravel() / cells.sum(), size=_DRAWS)
        resampled[..., group] = drawn.reshape(_DRAWS, *cells.shape)
    many = replace(tally, confusion=torch.from_numpy(resampled))
    values: Tensor = metrics.METRICS[metric](many, favourable)
    values = values[~values.isnan()]
    if len(values) == 0:
        return math.nan, math.nan
    low, high = np.quantile(values.numpy(), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
