"""Margins: one-sided confidence bounds of gaps, for many thresholds at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from ffalm.fairness.intervals import ratio_low
from ffalm.targets.rate_table import Array, RateConstraint, RateTable

T = TypeVar("T")
_HALVINGS = 10


def with_margin(table: RateTable, search: Callable[[RateTable], T | None], confident: Callable[[T], bool]) -> T | None:
    """What a search finds if all bounds are tightened by one factor, the largest at which the result is confident.

    None if there is no such factor. At the factor 0 rates must be equal. Predicting everybody alike achieves that for
    most rates but not for accuracies, of which a search may find nothing below some larger factor.
    """
    low, high = 0.0, 1.0
    found = search(table.stricter(low))
    if found is not None and not confident(found):
        return None
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        other = search(table.stricter(factor))
        if other is None and found is None:  # too strict for any choice
            low = factor
        elif other is not None and confident(other):
            low, found = factor, other
        else:
            high = factor
    return found


def confidence_end(constraint: RateConstraint, hits: Array, level: float) -> Array:
    """The one-sided confidence bound of the gap (upper) or ratio (lower) of hits, with groups on the first axis.

    Differences have Newcombe's bound, ratios Donner and Zou's, both the worst over all pairs of groups.
    """
    z = NormalDist().inv_cdf(level)
    trials = constraint.trials.reshape(-1, *[1] * (hits.ndim - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = hits / trials
        pairs = list(itertools.permutations(np.flatnonzero(constraint.trials > 0), 2))
        low, high = _wilson(rates, trials, z)
        if constraint.bound.at_most:
            ends = [rates[i] - rates[j] + np.hypot(high[i] - rates[i], rates[j] - low[j]) for i, j in pairs]
            return np.max(ends, axis=0) if ends else np.zeros(hits.shape[1:])
        ratios = [ratio_low(rates[i], low[i], rates[j], high[j]) for i, j in pairs]
        return np.min(ratios, axis=0) if ratios else np.ones(hits.shape[1:])


def _wilson(rates: Array, trials: Array, z: float) -> tuple[Array, Array]:
    """Both ends of Wilson's score interval."""
    centre = rates + z * z / (2 * trials)
    half = z * np.sqrt(rates * (1 - rates) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return np.clip((centre - half) / scale, 0, 1), np.clip((centre + half) / scale, 0, 1)
