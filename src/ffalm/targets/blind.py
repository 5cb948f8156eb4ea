"""Blind mode: one rule for everybody that brings the groups' rates together and never asks for anybody's group.

With eta(x) = P(favourable | x), the most accurate rule within a bound on demographic parity is

    predict favourable  iff  2 eta(x) - 1 >= sum_s lambda_s P(s | x) / P(s),    sum_s lambda_s = 0

Equal opportunity has P(s, favourable | x) / P(s, favourable) on the right, equalised odds one such sum a label, and
accuracy parity (P(s, favourable | x) - P(s, not favourable | x)) / P(s). Each is a weighted sum of P(cell | x) over
the cells (favourable or not, group), so one model of the cells serves every target. Multipliers are searched by counts
of held-out rows that are predicted favourable, which add up over sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.targets.candidates import LEVELS, MARGIN_COST
from ffalm.targets.rate_table import RateTable
from ffalm.targets.target import Target, check_confidence
from ffalm.targets.thresholds import within_bound

#: Multipliers that are tried on a line, denser near 0; then finer ones between the neighbours of the best.
GRID = 4 * torch.sinh(torch.linspace(-6, 6, 257, dtype=torch.float64, device="cpu")) / math.sinh(6)
_FINE = torch.linspace(-1, 1, 65, dtype=torch.float64, device="cpu")
_SWEEPS = 6  # over all lines, at most

Query = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(weights, line, steps) -> rows that each rule `weights + step * line` predicts favourable.

Weights and line are of shape (2, group), steps ascend, and counts are by (step, fallback, label, group).
"""


@dataclass(frozen=True)
class BlindRule:
    """Predict favourable iff gain >= sum of weights * P(cell | x)."""

    weights: Tensor  # (2, group): of the cells that are not favourable, and of those that are
    offset: float = 0.0  # the threshold of the score that counts as eta = 1/2: see `gains`

    def favourable(self, gain: Tensor, cells: Tensor) -> Tensor:
        """Whether each row is predicted favourable, by its gain and P(cell | x) of shape (row, 2, group)."""
        return gain >= cells.double().flatten(1) @ self.weights.flatten()

    def predict(self, logits: Tensor, cells: Tensor, favourable: int) -> Tensor:
        """The label of each row, from the model's logits and P(cell | x)."""
        gain, fallback = gains(logits, favourable, self.offset)
        return torch.where(self.favourable(gain, cells), favourable, fallback)

    def to_plain(self, group_names: tuple[str, ...]) -> dict[str, Any]:
        """Plain values for a file."""
        others, own = (dict(zip(group_names, side, strict=True)) for side in self.weights.tolist())
        return {"kind": "blind", "offset": self.offset, "weights": {"not favourable": others, "favourable": own}}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> BlindRule:
        """The inverse of `to_plain`."""
        try:
            sides = [list(values["weights"][side].values()) for side in ("not favourable", "favourable")]
            return cls(torch.tensor(sides, dtype=torch.float64), float(values["offset"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"This blind rule cannot be read ({error!r}): fit it again.") from None


def gains(logits: Tensor, favourable: int, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """2 eta(x) - 1 of each row, and the most likely of its other labels.

    With more than two labels the gain is P(favourable | x) minus the largest other probability. `offset` is subtracted
    from the favourable logit first, so that a threshold of the score becomes gain = 0.
    """
    shifted = logits.double().clone()
    shifted[:, favourable] -= offset
    likely = shifted.softmax(-1)
    own = likely[:, favourable].clone()
    likely[:, favourable] = -1.0
    best, fallback = likely.max(-1)
    return own - best, fallback


@dataclass(frozen=True)
class HeldOutRows:
    """What a site counts: gain, P(cell | x), and the row's fallback, label and group."""

    gain: Tensor
    cells: Tensor  # (row, 2, group)
    fallback: Tensor
    labels: Tensor
    groups: Tensor
    shape: tuple[int, int]  # (labels, groups)
    favourable: int = 1

    def totals(self) -> Tensor:
        """All rows by (fallback, label, group)."""
        return torch.bincount(self._places(), minlength=math.prod(self._cell_shape)).view(self._cell_shape)

    def count(self, weights: Tensor, line: Tensor, steps: Tensor) -> Tensor:
        """The `Query` of these rows alone: each row changes its prediction at one step of a line at most."""
        cells = self.cells.double().flatten(1)
        gain, slope = self.gain - cells @ weights.flatten(), cells @ line.flatten()
        never = torch.where(gain >= 0, torch.inf, -torch.inf)
        change = torch.where(slope == 0, never, gain / slope)  # favourable up to here, or from here where slope < 0
        falls = slope >= 0
        place = torch.where(falls, torch.searchsorted(steps, change, right=True), torch.searchsorted(steps, change))
        size = math.prod(self._cell_shape)
        flat = (falls * (len(steps) + 1) + place) * size + self._places()
        rising, falling = torch.bincount(flat, minlength=2 * (len(steps) + 1) * size).view(2, -1, size)
        chosen: Tensor = rising.cumsum(0) + falling.sum(0) - falling.cumsum(0)
        return chosen[:-1].view(-1, *self._cell_shape)

    @property
    def _cell_shape(self) -> tuple[int, int, int]:
        labels, groups = self.shape
        return labels - 1, labels, groups

    def _places(self) -> Tensor:
        labels, groups = self.shape
        own = self.fallback - (self.fallback > self.favourable).long()
        return (own * labels + self.labels) * groups + self.groups


def known_question(weights: Tensor, line: Tensor, steps: Tensor, target: Target, shares: Tensor, excluded: int) -> bool:
    """Whether a question is one that the search for a target asks.

    Those are along one of its lines, at the steps of the grid or between two of them, or of a single rule. They start
    from weights that moves along the lines lead to, from 0 if there is one line. A site answers no others: counts along
    many lines would reveal where a row lies on each of them.
    """
    shape = shares.shape
    if not (weights.shape == line.shape == shape and bool(weights.isfinite().all()) and steps.ndim == 1):
        return False
    lines, single = directions(target, shares, excluded), torch.zeros(1, dtype=torch.float64)
    if not _reachable(weights, lines):
        return False
    if not bool(line.any()):
        return torch.equal(steps, single)
    if len(lines) == 1 and bool(weights.any()):
        return False
    on_grid = _same(steps, GRID) or (steps.shape == _FINE.shape and bool(_close(_all_fine(), steps).all(-1).any()))
    return on_grid and any(_same(line, one) for one in lines)


def most_questions(target: Target, shares: Tensor, excluded: int = 0) -> int:
    """How many questions the search at all levels can take, the scores of each level's rule included."""
    lines = len(directions(target, shares, excluded))
    sweeps = 1 if lines == 1 else _SWEEPS
    return len(LEVELS) * (2 * lines * sweeps + 2)


def fine_steps(place: int) -> Tensor:
    """The steps between the neighbours of a step of the grid."""
    low, high = GRID[max(place - 1, 0)], GRID[min(place + 1, len(GRID) - 1)]
    return GRID[place] + torch.where(_FINE < 0, GRID[place] - low, high - GRID[place]) * _FINE


@cache
def _all_fine() -> Tensor:
    """By place on the grid."""
    return torch.stack([fine_steps(place) for place in range(len(GRID))])


def _reachable(weights: Tensor, lines: list[Tensor]) -> bool:
    """Whether weights are a sum of moves along the lines, each of them at most as far as the grid goes in a sweep."""
    if not bool(weights.any()):
        return True
    if not lines:
        return False
    basis = torch.stack([line.flatten() for line in lines], 1)
    off = weights.flatten() - basis @ torch.linalg.lstsq(basis, weights.flatten(), driver="gelsd").solution
    farthest = _SWEEPS * float(GRID[-1]) * basis.abs().sum(1) * (1 + 1e-9)
    return float(off.norm()) <= 1e-9 * (1 + float(weights.norm())) and bool((weights.flatten().abs() <= farthest).all())


def _same(found: Tensor, own: Tensor) -> bool:
    return found.shape == own.shape and bool(_close(found, own).all())


def _close(found: Tensor, own: Tensor) -> Tensor:
    """Equal up to how two processors round."""
    return torch.isclose(found, own, rtol=1e-9, atol=1e-12)


def rule_tally(chosen: Tensor, totals: Tensor, favourable: int, excluded: int) -> Tally:
    """The Tally of rules from the rows that each predicts favourable, by (rule, fallback, label, group), and of all."""
    labels, groups = totals.shape[-2:]
    confusion = torch.zeros(len(chosen), labels, labels, groups, dtype=chosen.dtype)
    confusion[:, favourable] = chosen.sum(1)
    others = [label for label in range(labels) if label != favourable]
    confusion[:, others] = totals - chosen
    unknown = torch.full((len(chosen), labels, groups), torch.nan, dtype=torch.float64)
    return Tally(confusion, unknown, excluded)


@dataclass(frozen=True)
class FittedBlindRule:
    """A rule with what its search found on the held-out rows."""

    rule: BlindRule
    level: float  # the one-sided confidence at which gaps are within the target
    within: bool  # whether they are
    tally: Tally


def fit_blind(
    query: Query,
    totals: Tensor,
    shares: Tensor,
    target: Target,
    favourable: int = 1,
    confidence: float | None = None,
    offset: float = 0.0,
    excluded: int = 0,
) -> FittedBlindRule:
    """The most accurate multipliers within a target; if none are, those whose rates are nearest to each other.

    `totals` are all held-out rows by (fallback, label, group), `shares` P(cell) by (not favourable / favourable,
    group), and `offset` that with which the rows' gains were made. Confidence is as in `Study.answer`: by default
    0.8, or less if that costs more than a point of accuracy. The last `excluded` groups are not compared: see `Tally`.
    """
    check_confidence(confidence)
    search = _Search(query, totals, shares.double(), target, favourable, offset, excluded)
    if confidence is not None:
        return search.run(confidence)
    plain = search.run(LEVELS[-1])
    for level in LEVELS[:-1]:
        found = search.run(level)
        if found.within and found.tally.accuracy() >= plain.tally.accuracy() - MARGIN_COST:
            return found
    return plain


def directions(target: Target, shares: Tensor, excluded: int = 0) -> list[Tensor]:
    """For each two groups that a bound compares, the weights of lambda = (1, -1) between them."""
    groups = shares.shape[1] - excluded
    found = []
    for metric in dict.fromkeys("dpd" if one.metric == "impact_ratio" else one.metric for one in target.bounds):
        sides = {"dpd": [(1, 1)], "eod": [(0, 1)], "equalized_odds": [(0, 1), (1, 0)], "accuracy_parity": [(-1, 1)]}
        for side in sides[metric]:
            signs = torch.tensor(side, dtype=torch.float64)
            part = (shares * signs.abs().unsqueeze(-1)).sum(0)  # P(s), P(s, favourable) or P(s, not favourable)
            for pair in itertools.combinations(range(groups), 2):
                if all(part[group] > 0 for group in pair):
                    line = torch.zeros_like(shares)
                    for group, sign in zip(pair, (1.0, -1.0), strict=True):
                        line[:, group] = sign * signs / part[group]
                    found.append(line)
    return found


@dataclass(frozen=True)
class _Search:
    """Coordinate search over pairs of groups: exact up to the grid for two groups and one compared rate."""

    query: Query
    totals: Tensor
    shares: Tensor
    target: Target
    favourable: int
    offset: float
    excluded: int = 0

    def run(self, level: float) -> FittedBlindRule:
        """The best rule at one confidence, from lambda = 0."""
        lines = directions(self.target, self.shares, self.excluded)
        weights = torch.zeros_like(self.shares)
        rank: tuple[float, ...] = (math.inf,)
        for _ in range(_SWEEPS):
            before = rank
            for line in lines:
                weights, rank = self._along(weights, line, level)
            if rank >= before or len(lines) == 1:
                break
        tally = self._tally(self.query(weights, torch.zeros_like(weights), torch.zeros(1, dtype=torch.float64)))[0]
        return FittedBlindRule(BlindRule(weights, self.offset), level, rank[0] == 0, tally)

    def _along(self, weights: Tensor, line: Tensor, level: float) -> tuple[Tensor, tuple[float, ...]]:
        """The best weights on a line through the given ones: on the grid, then between the neighbours of the best."""
        place = self._best(weights, line, GRID, level)[0]
        steps = fine_steps(place)
        place, rank = self._best(weights, line, steps, level)
        return weights + steps[place] * line, rank

    def _best(self, weights: Tensor, line: Tensor, steps: Tensor, level: float) -> tuple[int, tuple[float, ...]]:
        """The place of the best step, and its rank: within the target or not, rates' distances, wrong rows."""
        tally = self._tally(self.query(weights, line, steps))
        table = RateTable.of_tally(tally, self.target, self.favourable)
        within = np.ones(len(steps), dtype=bool)
        apart = np.zeros(len(steps))
        for one in table.constraints:
            within &= within_bound(one, one.rates, one.hits, level)
            known = one.rates[one.trials > 0]
            apart += sum((np.abs(a - b) for a, b in itertools.combinations(known, 2)), np.zeros(len(steps)))
        ranks = np.stack([~within, np.where(within, 0.0, apart), -table.value.sum(0), np.abs(steps.numpy())])
        place = int(np.lexsort(ranks[::-1])[0])
        return place, tuple(ranks[:3, place].tolist())

    def _tally(self, chosen: Tensor) -> Tally:
        return rule_tally(chosen, self.totals, self.favourable, self.excluded)
