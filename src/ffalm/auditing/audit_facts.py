"""The findings of an audit in plain values, which its tables, its page and the conditions of --fail-if read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ffalm.errors import UserError, look_up, require, require_known, short_repr
from ffalm.targets.target import ROUNDING

if TYPE_CHECKING:
    from pandas import DataFrame

#: A value that equals the bound but for rounding, as 0.4 - 0.3 equals 0.1, is not beyond it.
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda value, bound: value > bound + ROUNDING,
    ">=": lambda value, bound: value >= bound - ROUNDING,
    "<": lambda value, bound: value < bound - ROUNDING,
    "<=": lambda value, bound: value <= bound + ROUNDING,
}
#: Metrics that need no true outcome.
_OF_SELECTION = ("selection_rate", "dpd", "impact_ratio")
_CONDITION = re.compile(r"\s*([A-Za-z_]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+)\s*(%?)\s*")


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; NaN if it is undefined or has none."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class CalibrationBin:
    """The rows of a group whose score lies in one tenth of the range from 0 to 1."""

    rows: int
    predicted: float  # mean score
    observed: float  # share of rows whose label is the favourable one


@dataclass(frozen=True)
class GroupFacts:
    """One group: rates of its rows, and its selection rate over the highest one as `impact_ratio`."""

    name: str
    rows: int
    compared: bool  # False for small groups and for rows without a group
    small: bool
    metrics: dict[str, Estimate]
    calibration: tuple[CalibrationBin, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The two groups that a metric finds farthest apart, with the interval of their difference.

    They were found among all pairs, so the interval is one that holds for all pairs at once (Bonferroni). There is no
    pair if all groups are equal.
    """

    high: str
    low: str
    label: str | None  # of the rows that are compared, if the metric looks at several labels
    difference: Estimate


@dataclass(frozen=True)
class SweptThreshold:
    """The metrics if the favourable outcome were predicted from this score up."""

    threshold: float
    selected: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class GroupingFacts:
    """All groups of one column, or of several crossed."""

    name: str
    groups: tuple[GroupFacts, ...]
    metrics: dict[str, Estimate]
    pairs: dict[str, Pair]
    unknown_rows: int = 0  # rows without a group
    bounds: Mapping[str, tuple[float, float]] | None = None  # of metrics, over every assignment of these to groups
    sweep: tuple[SweptThreshold, ...] = ()

    def of_selection(self) -> GroupingFacts:
        """What does not depend on true outcomes."""

        def own(metrics: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in metrics.items() if name in _OF_SELECTION}

        return replace(
            self,
            groups=tuple(replace(one, metrics=own(one.metrics), calibration=()) for one in self.groups),
            metrics=own(self.metrics),
            pairs=own(self.pairs),
            bounds=None if self.bounds is None else own(self.bounds),
            sweep=tuple(replace(one, metrics=own(one.metrics)) for one in self.sweep),
        )


@dataclass(frozen=True)
class Failure:
    """A condition that holds for a grouping, or whose metric is undefined there."""

    condition: str
    grouping: str
    metric: str
    value: float


@dataclass(frozen=True, repr=False)
class AuditFacts:
    """What `ffalm.audit` found: `groupings` has every number, `metrics` those of the first group column."""

    label: str
    favourable: str
    rows: int
    scored: bool  # whether there are scores
    probabilities: bool  # whether these are probabilities
    threshold: float | None  # of the score, if predictions were made by one
    min_group: int
    level: float  # of intervals
    groupings: tuple[GroupingFacts, ...]
    notes: tuple[str, ...] = ()
    source: str = ""  # the file that was audited

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that compare the groups of the first column."""
        return {name: one.value for name, one in self.groupings[0].metrics.items()}

    def __getitem__(self, grouping: str) -> GroupingFacts:
        """The facts about one group column, or about a crossing such as "sex, race"."""
        return look_up("grouping of this audit", grouping, {one.name: one for one in self.groupings})

    def __repr__(self) -> str:
        names = [name for name in ("accuracy", "dpd", "eod") if name in self.metrics]
        shown = ", ".join(f"{name}={self.metrics[name]:.4f}" for name in names)
        return f"Audit({self.label} by {self.groupings[0].name}, {self.rows:,} rows: {shown})"

    def by_group(self, grouping: str | None = None) -> DataFrame:
        """One row per group, one column per metric, in the shape of fairlearn's `MetricFrame.by_group`."""
        from pandas import DataFrame

        chosen = self.groupings[0] if grouping is None else self[grouping]
        rows = {
            one.name: {"rows": one.rows, **{name: estimate.value for name, estimate in one.metrics.items()}}
            for one in chosen.groups
        }
        return DataFrame.from_dict(rows, orient="index").rename_axis(chosen.name)

    def failures(self, conditions: str | Sequence[str]) -> list[Failure]:
        """Those conditions, such as "dpd > 0.1", that hold for some grouping; an undefined metric fails too."""
        listed = isinstance(conditions, Iterable) and getattr(conditions, "ndim", 1) > 0
        require(listed, f'Give conditions such as "dpd > 0.1"; got {short_repr(conditions)}.')
        found = []
        for condition in [conditions] if isinstance(conditions, str) else conditions:
            metric, compare, bound = parsed_condition(condition, self.groupings[0].metrics)
            for one in self.groupings:
                value = one.metrics[metric].value
                if math.isnan(value) or compare(value, bound):
                    found.append(Failure(condition.strip(), one.name, metric, value))
        return found


def parsed_condition(text: str, metrics: Mapping[str, Any]) -> tuple[str, Callable[[float, float], bool], float]:
    """The metric, the comparison and the bound of a condition such as "dpd > 0.1" or "impact_ratio < 80 %"."""
    found = _CONDITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise UserError(f'The condition {short_repr(text)} is not understood: write it as in "dpd > 0.1".')
    metric, sign, number, percent = found.groups()
    require_known("metric of this audit", metrics, metric)
    try:
        bound = float(number) / (100 if percent else 1)
    except ValueError:
        bound = math.nan
    require(math.isfinite(bound), f"The bound {short_repr(number)} of {metric} is not a number.")
    require(
        0 <= bound <= 1,
        f"The bound of {metric} is a fraction from 0 to 1, such as 0.1 or 10 % for 10 points; with {bound:g} the "
        "condition would always or never hold.",
    )
    return metric, _OPERATORS[sign], bound
