"""Thresholds by site and group within a bound at every site and over all sites together (LoGoFair, AAAI 2025).

    max_t  sum_(k,g) value_kg(t_kg)    s.t.  gap_k(t) <= epsilon at each site k,    gap(t) <= epsilon over all rows

The rate of group g over all rows is r_g = sum_k hits_kg(t_kg) / n_g, so the pooled constraint r_g - r_h <= epsilon with
a multiplier mu adds -mu hits_kg / n_g to the value of group g and +mu hits_kh / n_h to that of group h at every site.
Given multipliers the sites are independent and each is searched exactly: with P(favourable | x) as the score this is
LoGoFair's shift of a Bayes-optimal threshold by one local and one global multiplier. Bisection finds the multipliers,
one pair of groups after the other. Since thresholds are discrete, the result is then brought within the bounds at one
site if it is not, and improved one site at a time, with the rows of the others fixed, until no site gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add

import numpy as np

from ffalm.errors import require
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.array_library import library
from ffalm.fairness.histograms import AS_TRAINED
from ffalm.targets.rate_table import Array, RateConstraint, RateTable
from ffalm.targets.repair import Repair, fit
from ffalm.targets.target import Target
from ffalm.targets.thresholds import (
    Edges,
    Ints,
    confident,
    group_thresholds,
    single_threshold,
    with_tie_break,
    within_bound,
)

#: Held-out rows of each compared group that a rate is taken over, for a site to have thresholds of its own.
ENOUGH_ROWS = 100
_PAIRS = 12  # of groups whose multiplier is searched for, one after the other
_DOUBLINGS = 30
_HALVINGS = 12
_SWEEPS = 10
_NEAREST = 3  # choices beyond a common bound that are mended at one site
_GAIN = 1e-6  # of value, in rows


@dataclass(frozen=True)
class SiteThresholds:
    """Thresholds of each site; `others` are for sites of too few rows, and for sites that are not known."""

    sites: dict[str, Repair]
    others: Repair

    def of(self, site: str) -> Repair:
        """The thresholds of a site."""
        return self.sites.get(site, self.others)

    def tally(self, histograms: Mapping[str, ScoreHistogram]) -> Tally:
        """The Tally of all rows, each predicted by the thresholds of its site; histograms by site."""
        require(bool(histograms), "There is no site to predict for.")
        return reduce(add, (self.of(site).tally(one) for site, one in histograms.items()))


def fit_sites(
    held_out: Mapping[str, ScoreHistogram],
    target: Target,
    *,
    federation: Target | None = None,
    others: Repair | None = None,
    level: float = 0.5,
    smooth: bool = True,
    enough: int = ENOUGH_ROWS,
) -> SiteThresholds | None:
    """The most accurate thresholds by site and group within a target; None if none were found.

    `held_out` are histograms by site. Every site is within `target`, and all rows together are within `federation`, by
    default the same. Sites with fewer than `enough` rows of a compared group keep the federation's thresholds,
    `others`, by default fitted to all rows: they count for the federation's gap, and have no bound of their own.
    `level` and `smooth` are as in `fit`.
    """
    require(bool(held_out), "Thresholds by site need the held-out rows of at least one site.")
    pooled, common = reduce(add, held_out.values()), federation or target
    others = others or fit(pooled, common, level=level, smooth=smooth) or fit(pooled, common, "single", smooth=smooth)
    assert others is not None
    large = {site: one for site, one in held_out.items() if fewest_trials(one, target) >= enough}
    small = [one for site, one in held_out.items() if site not in large]
    if not large:
        return SiteThresholds({}, others)
    single = _single(pooled, smooth)
    nobody = replace(pooled, counts=library(pooled.counts).zeros_like(pooled.counts))
    kept = RateTable.of_tally(Tally.stack([others.tally(reduce(add, small, nobody))]), common, pooled.favourable)
    search = _JointSearch(
        [_SiteSearch(with_tie_break(_table(one, target, smooth), single), single, level) for one in large.values()],
        [RateTable.of(one.compared(), common).constraints for one in large.values()],
        kept.constraints,
        single,
        level,
    )
    found = search.best()
    if found is None:
        return None
    repairs = [Repair.fixed("groups", [*edges, *[single] * pooled.excluded], single) for edges in found]
    return SiteThresholds(dict(zip(large, repairs, strict=True)), others)


def fewest_trials(histogram: ScoreHistogram, target: Target) -> float:
    """The rows of the compared group that has the fewest of those that a rate of the target is taken over."""
    return min(float(one.trials.min()) for one in RateTable.of(histogram.compared(), target).constraints)


def _table(histogram: ScoreHistogram, target: Target, smooth: bool) -> RateTable:
    table = RateTable.of(histogram.compared(), target)
    return table.smoothed() if smooth else table


def _single(histogram: ScoreHistogram, smooth: bool) -> int:
    """The most accurate edge for all rows."""
    own = histogram.as_trained
    table = RateTable.of(histogram, None)
    return single_threshold(table.smoothed() if smooth else table, AS_TRAINED if own is None else own)


@dataclass(frozen=True)
class _SiteSearch:
    """The best edges of one site within its own constraints, searched for again and again with other values."""

    table: RateTable
    start: int
    level: float

    def best(self, value: Array, common: tuple[RateConstraint, ...] = ()) -> Edges | None:
        """One edge per group, within further constraints if any; None if there are none."""
        if len(value) != 2:
            table = replace(self.table, value=value, constraints=(*self.table.constraints, *common))
            return group_thresholds(table, self.start, self.level)
        first, second = self._pairs
        total = value[0][first] + value[1][second]
        for one in common:
            rates, hits = (np.stack([each[0][first], each[1][second]]) for each in (one.rates, one.hits))
            total = np.where(within_bound(one, rates, hits, self.level), total, -np.inf)
        place = int(total.argmax()) if len(total) else 0
        return [int(first[place]), int(second[place])] if len(total) and np.isfinite(total[place]) else None

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """All pairs of edges of two groups within the site's own constraints.

        Of edges that predict the same only the best is kept.
        """
        first, second = (_distinct(*each) for each in zip(self.table.rows, self.table.value, strict=True))
        first, second = (each.ravel() for each in np.meshgrid(first, second, indexing="ij"))
        for one in self.table.constraints:
            rates, hits = (np.stack([each[0][first], each[1][second]]) for each in (one.rates, one.hits))
            within = within_bound(one, rates, hits, self.level)
            first, second = first[within], second[within]
        return first, second


def _distinct(rows: Array, value: Array) -> Ints:
    """Of edges with the same rows above them, the one of the best value."""
    order = np.lexsort((-value, rows))
    return np.sort(order[np.unique(rows[order], return_index=True)[1]])


@dataclass(frozen=True)
class _JointSearch:
    """Edges of several sites under constraints of their own and common ones."""

    sites: Sequence[_SiteSearch]
    shared: Sequence[tuple[RateConstraint, ...]]  # the hits and trials of each site in the common constraints
    kept: Sequence[RateConstraint]  # the same of the sites whose thresholds stay
    start: int
    level: float

    def best(self) -> list[Edges] | None:
        """The best edges that were found; None if a site has none, or no common ones were found."""
        free = self._choices({})
        if free is None or self._allowed(free):
            return free
        found = self._by_multipliers() or self._in_one_window()
        return None if found is None else self._improved(found)

    def _by_multipliers(self) -> list[Edges] | None:
        """Raise the multiplier of the pair of groups that is farthest beyond its bound until it is within.

        Of more than two groups, what brings one pair together may part another, and a small step of a multiplier may
        move many rows, so this may end beyond a bound. Then the nearest choices are mended at one site.
        """
        multipliers: dict[_Pair, float] = {}
        choice, seen = self._choices(multipliers), list[list[Edges]]()
        for _ in range(_PAIRS):
            if choice is None or self._allowed(choice):
                return choice
            pair = self._worst_pair(choice)
            if pair is None:
                break
            low, high = multipliers.get(pair, 0.0), max(1.0, 2 * multipliers.get(pair, 0.0))
            for _ in range(_DOUBLINGS):
                seen.append(choice)
                choice = self._choices({**multipliers, pair: high})
                if choice is None or self._excess(choice, pair) <= 0:
                    break
                low, high = high, 2 * high
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                tried = self._choices({**multipliers, pair: middle})
                if tried is not None and self._excess(tried, pair) <= 0:
                    high, choice = middle, tried
                else:
                    low = middle
                    seen += [] if tried is None else [tried]
            multipliers[pair] = high
        return choice if choice is not None and self._allowed(choice) else self._mended(seen)

    def _mended(self, choices: Sequence[list[Edges]]) -> list[Edges] | None:
        """The best choice that the edges of one site bring within the common constraints, of those nearest to them."""
        nearest = sorted(choices, key=self._farthest)[:_NEAREST]
        mended = [found for one in nearest for place in range(len(self.sites)) if (found := self._at_site(one, place))]
        return max(mended, key=self._value, default=None)

    def _at_site(self, choice: list[Edges], place: int) -> list[Edges] | None:
        """The choice with the best edges of one site, given the others'; None if there are none."""
        site = self.sites[place]
        edges = site.best(site.table.value, tuple(self._given_others(choice, place)))
        found = None if edges is None else [*choice[:place], edges, *choice[place + 1 :]]
        return found if found is not None and self._allowed(found) else None

    def _choices(self, multipliers: Mapping[_Pair, float]) -> list[Edges] | None:
        """The best edges of every site by itself, with values moved by the multipliers of the common constraints."""
        found = []
        for site, shared in zip(self.sites, self.shared, strict=True):
            value = site.table.value.copy()
            for (place, high, low), multiplier in multipliers.items():
                constraint, totals = shared[place], self._totals(place)
                scale = 1.0 if constraint.bound.at_most else constraint.bound.value
                value[high] -= multiplier * scale * constraint.hits[high] / totals[high]
                value[low] += multiplier * constraint.hits[low] / totals[low]
            edges = site.best(value)
            if edges is None:
                return None
            found.append(edges)
        return found

    def _in_one_window(self) -> list[Edges] | None:
        """The best edges with the rates of all groups at all sites near each other, so that pooled rates are too."""
        constraints = []
        for place, constraint in enumerate(self.shared[0]):
            each = [shared[place] for shared in self.shared]
            hits, trials = np.concatenate([one.hits for one in each]), np.concatenate([one.trials for one in each])
            constraints.append(RateConstraint(hits, trials, constraint.bound))
        tables = [site.table for site in self.sites]
        value, rows = (np.concatenate([getattr(table, name) for table in tables]) for name in ("value", "rows"))
        edges = group_thresholds(RateTable(value, rows, tuple(constraints)), self.start)
        if edges is None:
            return None
        groups = len(tables[0].value)
        choice = [edges[first : first + groups] for first in range(0, len(edges), groups)]
        own = all(confident(table, one, self.level) for table, one in zip(tables, choice, strict=True))
        return choice if own and self._allowed(choice) else None

    def _improved(self, choice: list[Edges]) -> list[Edges]:
        """Each site in turn takes its best edges, with the others' fixed, until none gains."""
        best = self._value(choice)
        for _ in range(_SWEEPS):
            for place in range(len(self.sites)):
                tried = self._at_site(choice, place)
                if tried is not None and self._value(tried) > self._value(choice):
                    choice = tried
            if self._value(choice) <= best + _GAIN:
                break
            best = self._value(choice)
        return choice

    def _given_others(self, choice: list[Edges], place: int) -> list[RateConstraint]:
        """The common constraints as functions of one site's edges."""
        constraints = []
        for number, own in enumerate(self.shared[place]):
            rest = self._hits(choice, number) - own.hits[np.arange(len(own.hits)), choice[place]]
            constraints.append(RateConstraint(own.hits + rest[:, None], self._totals(number), own.bound))
        return constraints

    def _value(self, choice: list[Edges]) -> float:
        return sum(
            float(site.table.value[np.arange(len(edges)), edges].sum())
            for site, edges in zip(self.sites, choice, strict=True)
        )

    def _totals(self, place: int) -> Array:
        """The trials of each group over all sites."""
        total: Array = np.sum([shared[place].trials for shared in self.shared], axis=0)
        return total + self.kept[place].trials

    def _hits(self, choice: list[Edges], place: int) -> Array:
        """The hits of each group over all sites."""
        own = [
            shared[place].hits[np.arange(len(edges)), edges] for shared, edges in zip(self.shared, choice, strict=True)
        ]
        total: Array = np.sum(own, axis=0)
        return total + self.kept[place].hits[:, 0]

    def _allowed(self, choice: list[Edges]) -> bool:
        """Whether all rows together are within the common constraints, with their confidence."""
        for place, constraint in enumerate(self.shared[0]):
            hits = self._hits(choice, place)[:, None]
            pooled = RateConstraint(hits, self._totals(place), constraint.bound)
            if not within_bound(pooled, pooled.rates, hits, self.level).all():
                return False
        return True

    def _excess(self, choice: list[Edges], pair: _Pair) -> float:
        """How far the pooled rates of two groups are beyond the bound of a common constraint, margin included."""
        place, high, low = pair
        bound = self.shared[0][place].bound
        hits, totals = self._hits(choice, place)[[high, low]], self._totals(place)[[high, low]]
        two = RateConstraint(hits[:, None], totals, bound)
        if within_bound(two, two.rates, hits[:, None], self.level).all():
            return 0.0
        first, second = hits / totals
        gap = first - second - bound.value if bound.at_most else bound.value * first - second
        return max(float(gap), math.ulp(1.0)) if first > second else -1.0

    def _farthest(self, choice: list[Edges]) -> float:
        """How far the pair of groups that is farthest beyond its bound is; 0 if none is."""
        pair = self._worst_pair(choice)
        return 0.0 if pair is None else self._excess(choice, pair)

    def _worst_pair(self, choice: list[Edges]) -> _Pair | None:
        """The common constraint and the two groups that are farthest beyond their bound."""
        excess: dict[_Pair, float] = {}
        for place in range(len(self.shared[0])):
            known = np.flatnonzero(self._totals(place) > 0).tolist()
            pairs = [(place, high, low) for high in known for low in known if high != low]
            excess |= {pair: self._excess(choice, pair) for pair in pairs}
        worst = max(excess, key=lambda pair: excess[pair], default=None)
        return worst if worst is not None and excess[worst] > 0 else None


_Pair = tuple[int, int, int]
"""A common constraint by its place, the group whose rate is to fall, and the one whose rate is to rise."""
