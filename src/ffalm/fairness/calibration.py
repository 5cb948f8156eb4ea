"""How far scores can be trusted as probabilities, from the scores themselves rather than from a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BINS = 10
"""Of equal width, from 0 to 1."""

Bin = tuple[int, float, float]
"""Rows, their mean score, and the share of them that is favourable."""


def calibration_bins(scores: NDArray[np.float64], favourable: NDArray[np.bool_]) -> list[Bin]:
    """The rows in each tenth of the range; empty ones are left out."""
    place = np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)
    masks = (place == number for number in range(BINS))
    return [(int(own.sum()), float(scores[own].mean()), float(favourable[own].mean())) for own in masks if own.any()]


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error: the mean distance of both, weighted by rows; NaN for no rows."""
    rows = sum(count for count, _, _ in bins)
    return sum(count * abs(mean - share) for count, mean, share in bins) / rows if rows else math.nan
