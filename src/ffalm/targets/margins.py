"""How sure a gap within its bound is: one-sided confidence bounds over many thresholds at once, and rows needed."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np

from ffalm.targets.rate_table import Array, RateConstraint
from ffalm.targets.target import Bound


def confidence_end(constraint: RateConstraint, hits: Array, level: float) -> Array:
    """The one-sided confidence bound of the gap (upper) or ratio (lower) of hits, with groups on the first axis.

    Differences have Newcombe's bound, ratios that of Katz, both the worst over all pairs of groups.
    """
    z = NormalDist().inv_cdf(level)
    trials = constraint.trials.reshape(-1, *[1] * (hits.ndim - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = hits / trials
        pairs = list(itertools.permutations(np.flatnonzero(constraint.trials > 0), 2))
        if constraint.bound.at_most:
            low, high = _wilson(rates, trials, z)
            ends = [rates[i] - rates[j] + np.hypot(high[i] - rates[i], rates[j] - low[j]) for i, j in pairs]
            return np.max(ends, axis=0) if ends else np.zeros(hits.shape[1:])
        spread = (1 - rates) / (trials * rates)
        ratios = [rates[i] / rates[j] * np.exp(-z * np.sqrt(spread[i] + spread[j])) for i, j in pairs]
        return np.nan_to_num(np.min(ratios, axis=0)) if ratios else np.ones(hits.shape[1:])


def rows_factor(bound: Bound, rates: Array, trials: Array, level: float) -> float:
    """By how much the rows of every group would have to grow for equal rates to be within the bound for sure.

    The bound of a gap of 0 is about z sqrt(p(1-p)(1/n_i + 1/n_j)), so rows are needed in proportion to its square.
    """
    known = trials > 0
    if known.sum() < 2:
        return math.inf
    z = NormalDist().inv_cdf(level)
    share = float((rates[known] * trials[known]).sum() / trials[known].sum())
    smallest = np.sort(trials[known])[:2]
    width = z * math.sqrt(share * (1 - share) * float((1 / smallest).sum()))
    if not bound.at_most:
        width = width / share if share > 0 else math.inf
    allowed = bound.value if bound.at_most else 1 - bound.value
    return (width / allowed) ** 2 if allowed > 0 else math.inf


def _wilson(rates: Array, trials: Array, z: float) -> tuple[Array, Array]:
    """Both ends of Wilson's score interval."""
    centre = rates + z * z / (2 * trials)
    half = z * np.sqrt(rates * (1 - rates) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return np.clip((centre - half) / scale, 0, 1), np.clip((centre + half) / scale, 0, 1)
