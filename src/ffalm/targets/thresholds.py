"""The best thresholds, one per group, whose rates are within a target: an exact search over bin edges.

Two groups have (bins + 1)^2 pairs of edges, which are all tried. For more groups, all rates lie in a window
[l, l + epsilon] (for a ratio [l, l / ratio]) for some l that is itself a rate of some (group, edge). Rates fall as an
edge rises, so a window allows each group one interval of edges, and the best edge of an interval is a range maximum.
Several rates are several windows, whose intervals intersect. With a margin no windows are left, and the choice is
searched by which edges of each two groups go together (`compatible_edges.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ffalm.targets.compatible_edges import CompatibleEdges
from ffalm.targets.margins import confidence_end, with_margin
from ffalm.targets.rate_table import Array, RateConstraint, RateTable

_ROUNDING = 1e-9
_WINDOWS = 1_000_000  # combinations of windows that are tried; levels are thinned evenly if there are more
_ACCURACY_LEVELS = 200  # that are tried of accuracy parity
_MOST_IN_PAIRS = 12  # groups of which all pairs of edges are compared
Edges = list[int]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


def single_threshold(table: RateTable, start: int, level: float = 0.5) -> int:
    """The best edge for all groups alike within the constraints, else the best of all; ties: nearest to `start`."""
    value = table.value.sum(0)
    allowed = np.isfinite(value)
    for constraint in table.constraints:
        allowed &= within_bound(constraint, constraint.rates, constraint.hits, level)
    usable = np.where(allowed, value, -np.inf) if allowed.any() else value
    best = np.flatnonzero(usable >= usable.max() - _ROUNDING)
    return int(best[np.abs(best - start).argmin()])


def group_thresholds(table: RateTable, start: int, level: float = 0.5) -> Edges | None:
    """One edge per group; None if no choice is within the constraints.

    Of equally good choices, the one that changes the fewest predictions of the single threshold `start`. The one-sided
    confidence bound of each gap at `level` must be within its bound; at 0.5 that is the gap itself.
    """
    table = with_tie_break(table, start)
    if len(table.value) == 2:
        return _best_pair(table, level)
    found = _best_windows(table)
    if level <= 0.5 or found is None or confident(table, found, level):
        return found
    return _best_confident(table, level)


def _best_confident(table: RateTable, level: float) -> Edges | None:
    """The best choice of three and more groups whose gaps are within their bounds with a confidence.

    Of many groups, or if that search does not end, the best within bounds that are all tightened alike.
    """
    if len(table.value) > _MOST_IN_PAIRS:
        return with_margin(table, _best_windows, lambda edges: confident(table, edges, level))
    edges = [_best_of_equal_edges(table, group) for group in range(len(table.value))]
    together = {}
    for first, second in itertools.combinations(range(len(edges)), 2):
        both = np.ones((len(edges[first]), len(edges[second])), dtype=bool)
        for one in table.constraints:
            pair = RateConstraint(one.hits[[first, second]], one.trials[[first, second]], one.bound)
            own = edges[first], edges[second]
            both &= within_bound(pair, _pairs(pair.rates, own), _pairs(pair.hits, own), level)
        together[first, second] = both
    search = CompatibleEdges([own[places] for own, places in zip(table.value, edges, strict=True)], together)
    found = search.search()
    best = None if found is None else [int(places[one]) for places, one in zip(edges, found, strict=True)]
    if search.complete:
        return best
    other = with_margin(table, _best_windows, lambda edges: confident(table, edges, level))
    return max((one for one in (best, other) if one is not None), key=table.value_of, default=None)


def confident(table: RateTable, edges: Edges, level: float) -> bool:
    """Whether the one-sided confidence bound of each gap is within its bound."""
    groups = np.arange(len(edges))
    return all(
        constraint.bound.meets(float(confidence_end(constraint, constraint.hits[groups, edges], level)))
        for constraint in table.constraints
    )


def with_tie_break(table: RateTable, start: int) -> RateTable:
    """With a penalty on changed predictions, too small to outweigh any difference in value."""
    changed = np.abs(table.rows - table.rows[:, [start]])
    steps = np.abs(np.arange(table.rows.shape[1]) - start)
    penalty: Array = 1e-6 * changed / max(1.0, table.rows[:, 0].sum()) + 1e-12 * steps
    return replace(table, value=table.value - penalty)


def _best_pair(table: RateTable, level: float) -> Edges | None:
    """The best of all pairs of edges of two groups."""
    edges = [_best_of_equal_edges(table, group) for group in range(2)]
    total = table.value[0, edges[0]][:, None] + table.value[1, edges[1]]
    for constraint in table.constraints:
        within = within_bound(constraint, _pairs(constraint.rates, edges), _pairs(constraint.hits, edges), level)
        total = np.where(within, total, -np.inf)
    best = total.argmax()
    if not np.isfinite(total.flat[best]):
        return None
    return [int(own[place]) for own, place in zip(edges, np.unravel_index(best, total.shape), strict=True)]


def _best_of_equal_edges(table: RateTable, group: int) -> Ints:
    """Of neighbouring edges with the same rates, since the bins between them are empty, the one of the best value."""
    other = np.ones(table.value.shape[1], dtype=bool)
    other[1:] = np.any([one.hits[group, 1:] != one.hits[group, :-1] for one in table.constraints], axis=0)
    by_value = np.lexsort((-table.value[group], other.cumsum()))  # stable: the first of equals
    return by_value[other]


def _pairs(values: Array, edges: Sequence[Ints]) -> Array:
    """(2, edge) as (2, edge of the first group, edge of the second)."""
    return np.stack(np.broadcast_arrays(values[0, edges[0]][:, None], values[1, edges[1]]))


def within_bound(constraint: RateConstraint, rates: Array, hits: Array, level: float) -> Flags:
    """Whether rates, and their confidence bounds, are within the bound, with groups on the first axis.

    Groups without rows do not count.
    """
    bound, known = constraint.bound, rates[constraint.trials > 0]
    if len(known) < 2:
        return np.ones(rates.shape[1:], dtype=bool)
    low, high = known.min(0), known.max(0)
    if bound.at_most:
        allowed = np.asarray(high - low <= bound.value + _ROUNDING)
    else:
        allowed = np.asarray((low >= bound.value * high - _ROUNDING) & (high > 0))
    if level > 0.5:  # only if there is something left to refuse: bounds cost more than rates
        end = confidence_end(constraint, hits[:, allowed], level)
        allowed[allowed] = end <= bound.value if bound.at_most else end >= bound.value
    return allowed


def _best_windows(table: RateTable) -> Edges | None:
    """The best choice over all combinations of windows, for any number of groups.

    A rate of which fewer than two groups have rows constrains nothing, as in `within_bound`.
    """
    compared = tuple(one for one in table.constraints if np.count_nonzero(one.trials) > 1)
    table = replace(table, constraints=compared)
    monotone = [one for one in compared if one.monotone]
    most = int(_WINDOWS ** (1 / max(1, len(monotone))))
    intervals = [_intervals(one, most) for one in monotone]
    best, found = -np.inf, None
    for value in _in_accuracy_windows(table):
        total, edges = _best_of_intervals(value, intervals)
        if total > best:
            best, found = total, edges
    return found


def _in_accuracy_windows(table: RateTable) -> Iterator[Array]:
    """The values with -inf wherever accuracy is outside a window, for each window of accuracy parity if it is bound."""
    bound = [one for one in table.constraints if not one.monotone]
    if not bound:
        yield table.value
        return
    rates = bound[0].rates
    for low in _levels(rates, _ACCURACY_LEVELS):
        inside = (rates >= low - _ROUNDING) & (rates <= low + bound[0].bound.value + _ROUNDING)
        yield np.where(inside | np.isnan(rates), table.value, -np.inf)


def _levels(rates: Array, most: int) -> Array:
    """The distinct rates, thinned evenly to at most so many."""
    levels = np.unique(rates[~np.isnan(rates)])
    return levels if len(levels) <= most else levels[np.linspace(0, len(levels) - 1, most).astype(int)]


def _intervals(constraint: RateConstraint, most: int) -> tuple[Ints, Ints]:
    """For each window the first and last edge of each group with its rate in the window, of shape (window, group)."""
    rates, bound = constraint.rates, constraint.bound
    low = _levels(rates, most)
    if not bound.at_most:
        low = low[low > 0]
    high = low + bound.value if bound.at_most else low / max(bound.value, 1e-12)
    first, last = (np.zeros((len(low), len(rates)), dtype=np.int64) for _ in range(2))
    for group, own in enumerate(rates):
        if np.isnan(own).any():
            last[:, group] = len(own) - 1
            continue
        rising = -own  # rates fall with the edge
        first[:, group] = np.searchsorted(rising, -(high + _ROUNDING), side="left")
        last[:, group] = np.searchsorted(rising, -(low - _ROUNDING), side="right") - 1
    return first, last


def _best_of_intervals(value: Array, intervals: Sequence[tuple[Ints, Ints]]) -> tuple[float, Edges | None]:
    """The best edges over the product of several lists of windows.

    What all but the last list allow bounds what is left, so combinations are tried from the best bound down and the
    search ends where no bound is above the best found.
    """
    groups, edges = value.shape
    maxima = _RangeMaximum(value)
    best, found = -np.inf, None
    whole: tuple[Ints, Ints] = (np.zeros((1, groups), dtype=np.int64), np.full((1, groups), edges - 1))
    inner = intervals[-1] if intervals else whole
    outer = functools.reduce(_intersections, intervals[:-1], whole)
    bounds = maxima.totals(*outer)[0]
    for place in np.argsort(-bounds, kind="stable"):
        if bounds[place] <= best:
            break
        first, last = _intersections((outer[0][[place]], outer[1][[place]]), inner)
        if len(first):
            totals, places = maxima.totals(first, last)
            top = int(totals.argmax())
            if totals[top] > best:
                best, found = float(totals[top]), [int(edge) for edge in places[top]]
    return best, found


def _intersections(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Every window of one list with every one of another, where they leave each group an edge."""
    first = np.maximum(one[0][:, None], other[0]).reshape(-1, one[0].shape[1])
    last = np.minimum(one[1][:, None], other[1]).reshape(first.shape)
    usable = (last >= first).all(-1)
    return first[usable], last[usable]


class _RangeMaximum:
    """The place of the largest value in an interval of each row, by tables of intervals of 1, 2, 4, ... edges."""

    def __init__(self, value: Array) -> None:
        self._value = value
        count = value.shape[1]
        self._tables = [np.broadcast_to(np.arange(count), value.shape)]
        width = 1
        while 2 * width <= count:
            before = self._tables[-1]
            starts = count - 2 * width + 1
            self._tables.append(self._better(before[:, :starts], before[:, width : width + starts]))
            width *= 2

    def totals(self, first: Ints, last: Ints) -> tuple[Array, Ints]:
        """For each window the sum of the groups' largest values, and their places."""
        places = self.argmax(first, last)
        return self._value[np.arange(len(self._value)), places].sum(-1), places

    def argmax(self, first: Ints, last: Ints) -> Ints:
        """For intervals of shape (window, group), both ends included."""
        result = np.empty_like(first)
        power = np.log2(last - first + 1).astype(np.int64)
        for group in range(first.shape[1]):
            for level in np.unique(power[:, group]):
                own = power[:, group] == level
                table = self._tables[level][group]
                left, right = table[first[own, group]], table[last[own, group] - (1 << level) + 1]
                row = self._value[group]
                result[own, group] = np.where(row[right] > row[left], right, left)
        return result

    def _better(self, left: Ints, right: Ints) -> Ints:
        values = np.take_along_axis(self._value, left, 1), np.take_along_axis(self._value, right, 1)
        return np.where(values[1] > values[0], right, left)
