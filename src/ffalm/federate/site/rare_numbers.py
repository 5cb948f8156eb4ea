"""Replaces rare numbers of a column before it is summed, so that enough rows share each, as for a named category.

A coordinator that knows which values a column can have, such as 0 to 15 convictions, could compute from the exact sums
how many rows hold each, even values that one or two rows hold. So neighbouring values that few rows hold are put
together (univariate microaggregation) before anything is summed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def put_together(values: Numbers, fewest: int) -> Numbers:
    """The values in their order, each replaced by one that at least `fewest` of them share.

    A value that enough rows hold stays. Of the others, neighbours in size are put together until they are enough, and
    replaced by their mean, rounded to steps of the smallest difference between them: the exact mean of eight threes and
    two fours would reveal how many there are of each. If there are not enough between two values that stay, each is
    replaced by the nearer of these two. There must be at least `fewest` values.
    """
    distinct, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    rare = counts < fewest
    if not rare.any():
        return values
    told = distinct.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # differences of the largest numbers there are
        for first, end in _runs(rare):
            own = distinct[first:end]
            if counts[first:end].sum() >= fewest:
                told[first:end] = _means(own, counts[first:end], fewest)
            else:
                told[first:end] = _nearer(own, distinct[max(first - 1, 0) : first], distinct[end : end + 1])
    return told[place]


def _runs(marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where each run of marked places begins and ends."""
    edges = np.flatnonzero(np.diff(marked.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _nearer(values: Numbers, below: Numbers, above: Numbers) -> Numbers:
    """For each value the nearer of the one below and the one above, of which one may be missing."""
    if not len(below) or not len(above):
        return np.broadcast_to(np.concatenate([below, above]), values.shape)
    return np.where(values - below <= above - values, below, above)


def _means(values: Numbers, counts: NDArray[np.int64], fewest: int) -> Numbers:
    """For each of these sorted values, all of them rare, the rounded mean of those it is put together with."""
    rows = np.cumsum(counts)
    starts, before = [0], 0
    while rows[-1] - before >= 2 * fewest:
        end = int(np.searchsorted(rows, before + fewest)) + 1
        before = int(rows[end - 1])
        if rows[-1] - before < fewest:
            break
        starts.append(end)
    at, ends = np.array(starts), np.array([*starts[1:], len(values)])
    weights = counts / np.repeat(np.add.reduceat(counts, at), ends - at)
    means = np.add.reduceat(values * weights, at)
    gaps = np.diff(values, append=np.inf)
    gaps[ends - 1] = np.inf  # to the next part
    step, first = np.minimum.reduceat(gaps, at), values[at]
    steps = np.minimum(np.rint((means - first) / step), np.floor((values[ends - 1] - first) / step))
    rounded = first + steps * step
    return np.repeat(np.where(np.isfinite(rounded), rounded, means), ends - at)
