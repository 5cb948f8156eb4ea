"""Ranks of methods in a cell at a bound, with significance, and totals over cells.

A method qualifies in a cell if it has a model in every seed, none of them degenerate, and its mean gap on test rows is
within the bound. Those that qualify are ranked by their mean accuracy, equal ones sharing the mean of their places; the
others share the places below. A method is tied with the first if a paired t-test over seeds, with Holm's correction for
the number of methods, finds no difference of their accuracies at 5 %. With few seeds two methods may differ by the same
amount in every seed, since accuracies are counts of rows; the t-test then has no spread, and the sign test is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.targets.target import Target

SIGNIFICANCE = 0.05
BEYOND = "the mean gap is beyond the bound"
_SAME = 1e-9  # accuracies that differ by less are equal up to rounding


@dataclass(frozen=True)
class Standing:
    """One method at one bound in one cell."""

    cell: str
    target: str
    method: str
    accuracy: float  # mean over seeds on test rows
    spread: float  # standard deviation over seeds
    gap: float
    held: float  # share of seeds in which the gap was within the bound
    hypervolume: float
    problem: str  # why it does not qualify; empty if it does
    rank: float = math.nan
    p: float = math.nan  # corrected, of the difference from the first; NaN if it does not qualify

    @property
    def first(self) -> bool:
        """Whether it is first or tied with the first."""
        return not self.problem and (self.rank == 1 or self.p >= SIGNIFICANCE)


def seeds_by_cell(choices: Sequence[MethodChoice]) -> dict[str, int]:
    """How many seeds each cell has."""
    return {
        cell: len({one.seed for one in choices if one.cell == cell})
        for cell in dict.fromkeys(one.cell for one in choices)
    }


def standings(choices: Sequence[MethodChoice]) -> list[Standing]:
    """Every cell and bound, ranked."""
    found = []
    for cell, target in dict.fromkeys((one.cell, one.target) for one in choices):
        found += _ranked([one for one in choices if (one.cell, one.target) == (cell, target)])
    return found


def _ranked(choices: Sequence[MethodChoice]) -> list[Standing]:
    """The methods of one cell at one bound, best first."""
    by_method: dict[str, list[MethodChoice]] = {}
    for one in choices:
        by_method.setdefault(one.method, []).append(one)
    rows = [_standing(own) for own in by_method.values()]
    good = sorted((row for row in rows if not row.problem), key=lambda row: -row.accuracy)
    rest = sorted((row for row in rows if row.problem), key=lambda row: (math.isnan(row.gap), row.gap))
    accuracies = {name: {one.seed: one.accuracy for one in own} for name, own in by_method.items()}
    ps = [1.0, *holm([paired_p(accuracies[good[0].method], accuracies[row.method]) for row in good[1:]])]
    shared = len(good) + (len(rest) + 1) / 2
    ranked = list(zip(good, _shared_ranks([row.accuracy for row in good]), ps, strict=False))
    ranked += [(row, shared, math.nan) for row in rest]
    return [Standing(**{**vars(row), "rank": rank, "p": p}) for row, rank, p in ranked]


def _shared_ranks(accuracies: Sequence[float]) -> list[float]:
    """The rank of each accuracy, in descending order; equal ones share the mean of their places."""
    ranks: list[float] = []
    for one in accuracies:
        places = [place for place, other in enumerate(accuracies, 1) if abs(other - one) < _SAME]
        ranks.append(fmean(places))
    return ranks


def _standing(own: Sequence[MethodChoice]) -> Standing:
    accuracies, gaps = [one.accuracy for one in own], [one.gap for one in own]
    gap, bound = fmean(gaps), Target.parse(own[0].target)
    missing, degenerate = sum(map(math.isnan, accuracies)), sum(bool(one.degenerate) for one in own)
    problem = ""
    if missing:
        problem = f"no model in {missing} of {len(own)} seeds"
    elif degenerate:
        problem = f"degenerate in {degenerate} of {len(own)} seeds"
    elif not bound.meets({bound.bounds[0].metric: gap}):
        problem = BEYOND
    spread = stdev(accuracies) if len(own) > 1 and not missing else math.nan
    held, volume = fmean(one.held for one in own), fmean(one.hypervolume for one in own)
    return Standing(own[0].cell, own[0].target, own[0].method, fmean(accuracies), spread, gap, held, volume, problem)


def paired_p(first: dict[int, float], second: dict[int, float]) -> float:
    """The two-sided p-value of a paired t-test over the seeds that both have; 1 with fewer than two seeds.

    n equal differences have the p-value of the sign test, 2^(1 - n): one row more in each of two seeds is no evidence.
    """
    from scipy.special import stdtr  # Student's t; scipy.stats would take a second to import

    differences = [first[seed] - second[seed] for seed in first if seed in second]
    if len(differences) < 2:
        return 1.0
    mean, spread = fmean(differences), stdev(differences)
    if spread < _SAME:
        return 1.0 if abs(mean) < _SAME else 0.5 ** (len(differences) - 1)
    return float(2 * stdtr(len(differences) - 1, -abs(mean) / (spread / math.sqrt(len(differences)))))


def holm(ps: Sequence[float]) -> list[float]:
    """P-values with Holm's correction: each times the number of those not smaller, never less than the one before."""
    corrected, largest = [0.0] * len(ps), 0.0
    for place, number in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        largest = max(largest, min(1.0, ps[number] * (len(ps) - place)))
        corrected[number] = largest
    return corrected


@dataclass(frozen=True)
class Total:
    """One method at one bound over all cells."""

    target: str
    method: str
    cells: int  # in which it was run
    qualified: int
    first: int  # cells in which it is first or tied with the first
    rank: float  # mean
    accuracy: float  # mean over the cells in which it qualified
    held: float
    hypervolume: float


def totals(found: Sequence[Standing]) -> list[Total]:
    """Every method over all cells, for each bound the one with the best mean rank first."""
    rows = []
    for target, method in dict.fromkeys((one.target, one.method) for one in found):
        own = [one for one in found if (one.target, one.method) == (target, method)]
        good = [one.accuracy for one in own if not one.problem]
        rows.append(
            Total(
                target,
                method,
                len(own),
                len(good),
                sum(one.first for one in own),
                fmean(one.rank for one in own),
                fmean(good) if good else math.nan,
                fmean(one.held for one in own),
                fmean(one.hypervolume for one in own),
            )
        )
    order = list(dict.fromkeys(one.target for one in found))
    return sorted(rows, key=lambda row: (order.index(row.target), row.rank))
