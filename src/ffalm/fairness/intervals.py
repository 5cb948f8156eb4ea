"""Confidence intervals of metrics over the sampling of the evaluated rows, from the Tally alone.

Shares get Wilson's score interval and differences of two shares Newcombe's, built from it; both keep their promise on
small groups where the textbook interval does not. The largest difference between several shares, and the smallest of
them, get one that is built from these. Everything else is bootstrapped: a Tally's counts are all that a
resample of the rows could change, so drawing them from a multinomial is the bootstrap over rows, without the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffalm.errors import require, unknown
from ffalm.fairness import group_metrics
from ffalm.randomness import Purpose, generator

if TYPE_CHECKING:
    from ffalm.fairness.tally import Tally

Share = tuple[float, float]
"""Successes and trials."""

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


def newcombe(first: Share, second: Share, level: float = 0.95) -> tuple[float, float]:
    """Newcombe's hybrid score interval of a difference of two shares, each given as (successes, trials)."""
    low, high = _differences([first, second], level)
    return float(low[0, 1]), float(high[0, 1])


def interval(tally: Tally, metric: str, level: float = 0.95, favourable: int = 1) -> tuple[float, float]:
    """The interval of a metric by its name; (NaN, NaN) where the metric itself is undefined."""
    if metric not in group_metrics.METRICS:
        raise unknown("metric", metric, group_metrics.METRICS)
    require(metric not in _OF_LOSSES, f"A Tally holds sums of losses, not their spread: {metric!r} has no interval.")
    require(0 < level < 1, f"The level of an interval lies between 0 and 1; got {level}.")
    if math.isnan(float(group_metrics.METRICS[metric](tally, favourable))):
        return math.nan, math.nan
    if metric == "accuracy":
        right = group_metrics.accuracy(tally) * tally.count.sum()
        return wilson(float(right), float(tally.count.sum()), level)
    if metric == "worst_group_accuracy":
        return _smallest(_right(tally), level)
    compared = _compared(tally, metric, favourable)
    return _bootstrap(tally, metric, level, favourable) if compared is None else _largest(compared, level)


def _compared(tally: Tally, metric: str, favourable: int) -> list[list[Share]] | None:
    """The groups' shares of which a metric takes the largest difference, of any label; None where it does not."""
    chosen, counts = tally.confusion[favourable], tally.count  # by label and group
    if metric == "dpd":
        return [_shares(chosen.sum(0), counts.sum(0))]
    if metric == "eod":
        return [_shares(chosen[favourable], counts[favourable])]
    if metric == "equalized_odds":
        return [_shares(*of_label) for of_label in zip(chosen, counts, strict=True)]
    if metric == "accuracy_parity":
        return [_right(tally)]
    return None


def _right(tally: Tally) -> list[Share]:
    """Each group's rows that were predicted right."""
    rows = tally.count.sum(0)
    return _shares(group_metrics.group_accuracy(tally) * rows, rows)


def _shares(hits: Tensor, trials: Tensor) -> list[Share]:
    return list(zip(hits.tolist(), trials.tolist(), strict=True))


def _largest(compared: Sequence[Sequence[Share]], level: float) -> tuple[float, float]:
    """The interval of the largest absolute difference between two shares of a list.

    It reaches as far as the interval of any two, so as far as that of the two that truly lie farthest apart. Some two
    of many lie apart by chance, so its lower end wants more of each two: as many times less room for error as there
    are twos. Resampling would not do: it never shrinks a largest difference to 0, even where all groups are alike.
    """
    twos = sum(math.comb(len(shares), 2) for shares in compared)
    low = max(float(_differences(shares, 1 - (1 - level) / twos)[0].max()) for shares in compared)
    high = max(float(_apart(_differences(shares, level)[1]).max()) for shares in compared)
    return max(0.0, low), high


def _smallest(shares: Sequence[Share], level: float) -> tuple[float, float]:
    """The interval of the smallest of several shares, by the same reasoning."""
    low = min(wilson(*share, level)[0] for share in shares)
    return low, min(wilson(*share, 1 - (1 - level) / len(shares))[1] for share in shares)


def _apart(of_twos: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a square says of two different shares."""
    return of_twos[~np.eye(len(of_twos), dtype=bool)]


def _differences(shares: Sequence[Share], level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of Newcombe's interval of each share (down) minus each other one (across); NaN for no trials."""
    ends = np.array([wilson(*share, level) for share in shares])
    values = np.array([hits / trials if trials else math.nan for hits, trials in shares])
    below, above = values - ends[:, 0], ends[:, 1] - values
    differences = values[:, None] - values
    return differences - np.hypot(below[:, None], above), differences + np.hypot(above[:, None], below)


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
    values: Tensor = group_metrics.METRICS[metric](many, favourable)
    values = values[~values.isnan()]
    if len(values) == 0:
        return math.nan, math.nan
    low, high = np.quantile(values.numpy(), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
