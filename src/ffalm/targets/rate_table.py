"""What each threshold of each group would give: rates, correct rows and changed rows, from a score histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import require, require_number
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.array_library import double
from ffalm.targets.target import Bound, Target

Array = NDArray[np.float64]
_WIDTH, _WIDTH_ROWS = 4.0, 3000.0  # bins of smoothing at so many rows


@dataclass(frozen=True)
class Costs:
    """What a wrong favourable and a wrong unfavourable prediction cost; with 1 and 1 accuracy is maximised."""

    false_favourable: float = 1.0
    false_unfavourable: float = 1.0

    def __post_init__(self) -> None:
        costs = [
            require_number(one, "cost of a wrong prediction")
            for one in (self.false_favourable, self.false_unfavourable)
        ]
        require(
            min(costs) >= 0 and max(costs) > 0,
            f"Costs of wrong predictions are 0 or more, and not both 0; got {costs[0]:g} and {costs[1]:g}.",
        )

    @property
    def largest(self) -> float:
        """What a row can cost at most."""
        return max(self.false_favourable, self.false_unfavourable)

    @property
    def shares(self) -> tuple[float, float]:
        """Both costs as shares of the larger one, so that no choice depends on their unit."""
        return self.false_favourable / self.largest, self.false_unfavourable / self.largest

    def per_row(self, tally: Tally, favourable: int) -> float:
        """The mean cost of a row."""
        counts = double(tally.confusion).sum(-1)
        false_favourable = float(counts[favourable].sum() - counts[favourable, favourable])
        wrong = float(counts.sum() - counts.trace())
        own, other = self.shares
        return (own * false_favourable + other * (wrong - false_favourable)) / float(counts.sum()) * self.largest


@dataclass(frozen=True)
class RateConstraint:
    """Rates that must be near each other: hits of shape (group, edge) out of trials of shape (group,)."""

    hits: Array
    trials: Array
    bound: Bound

    @property
    def rates(self) -> Array:
        """Of shape (group, edge); NaN for groups without trials, which are not constrained."""
        with np.errstate(invalid="ignore"):
            return self.hits / self.trials[:, None]

    @property
    def monotone(self) -> bool:
        """Whether a higher threshold never raises the rate."""
        return self.bound.metric != "accuracy_parity"


@dataclass(frozen=True)
class RateTable:
    """The objective and the constraints at every (group, edge)."""

    value: Array  # (group, edge), to be maximised: minus the costs of wrong predictions, in units of the larger one
    rows: Array  # (group, edge): rows from the edge up, so that differences count changed predictions
    constraints: tuple[RateConstraint, ...]

    @classmethod
    def of(cls, histogram: ScoreHistogram, target: Target | None, costs: Costs | None = None) -> RateTable:
        """The table of a histogram; without a target nothing is constrained."""
        own_cost, other_cost = (costs or Costs()).shares
        favourable = histogram.favourable
        above = np.asarray(histogram.at_least(), np.float64).transpose(2, 1, 0)  # (group, label, edge)
        correct = np.asarray(histogram.correct(), np.float64).T
        chosen, total = above.sum(1), above[:, :, 0]
        wrong_favourable = chosen - above[:, favourable]
        others = total.sum(1)[:, None] - correct - wrong_favourable
        value = -(own_cost * wrong_favourable + other_cost * others)
        return cls(value, chosen, _constraints(above, total, correct, favourable, target))

    @classmethod
    def of_tally(cls, tally: Tally, target: Target, favourable: int) -> RateTable:
        """The table of several rules for everybody, a Tally with one leading axis: its place there is the edge.

        Values are of all groups, constraints of those that are compared.
        """
        counts = np.asarray(tally.confusion, np.float64)  # (rule, prediction, label, group)
        above = counts[:, favourable].transpose(2, 1, 0)  # (group, label, rule)
        right = np.einsum("rllg->gr", counts)
        total = counts[0].sum(0).T
        value = right - total.sum(1)[:, None]
        groups = slice(len(total) - tally.excluded)
        constraints = _constraints(above[groups], total[groups], right[groups], favourable, target)
        return cls(value, above.sum(1), constraints)

    def value_of(self, edges: Sequence[int]) -> float:
        """The value of one edge per group."""
        return float(self.value[np.arange(len(edges)), edges].sum())

    def stricter(self, factor: float) -> RateTable:
        """With every bound at this share of its distance from equal rates."""
        tighter = tuple(replace(one, bound=one.bound.stricter(factor)) for one in self.constraints)
        return replace(self, constraints=tighter)

    def smoothed(self) -> RateTable:
        """With values averaged over neighbouring edges by a Gaussian kernel, wider for fewer rows.

        Its width in bins is 4 (n / 3000)^(-1/5), the rate at which kernel estimates converge.
        """
        width = _WIDTH * (max(1.0, float(self.rows[:, 0].sum())) / _WIDTH_ROWS) ** -0.2
        reach = min(int(4 * width) + 1, self.value.shape[1] - 1)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
        padded = np.pad(self.value, ((0, 0), (reach, reach)), mode="edge")
        value = np.stack([np.convolve(row, kernel / kernel.sum(), "valid") for row in padded])
        return replace(self, value=value)

    def of_both_labels(self, most: float, together: bool = False) -> RateTable:
        """Without edges (value -inf) at which more than this share of a group, or of all, is or is not selected."""
        rows = self.rows.sum(0, keepdims=True) if together else self.rows
        selected = np.divide(rows, rows[:, [0]], out=np.full_like(rows, 0.5), where=rows[:, [0]] > 0)
        return replace(self, value=np.where((selected >= 1 - most) & (selected <= most), self.value, -np.inf))


def _constraints(
    above: Array, total: Array, correct: Array, favourable: int, target: Target | None
) -> tuple[RateConstraint, ...]:
    """What a target compares: rows predicted favourable by (group, label, edge), of all by (group, label)."""
    chosen, rows = above.sum(1), total.sum(1)
    by_metric = {
        "dpd": [(chosen, rows)],
        "impact_ratio": [(chosen, rows)],
        "eod": [(above[:, favourable], total[:, favourable])],
        "equalized_odds": [(above[:, label], total[:, label]) for label in range(total.shape[1])],
        "accuracy_parity": [(correct, rows)],
    }
    bounds = () if target is None else target.bounds
    return tuple(RateConstraint(*pair, bound) for bound in bounds for pair in by_metric[bound.metric])
