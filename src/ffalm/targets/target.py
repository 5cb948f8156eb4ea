"""A fairness target, such as "dpd <= 0.05" or "eod <= 0.05, impact_ratio >= 0.8"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from ffalm.errors import UserError, require, require_number, short_repr, unknown

#: The metrics that a target can bound, with the sign of the bound.
SIGNS = {
    "dpd": "<=",
    "eod": "<=",
    "equalized_odds": "<=",
    "accuracy_parity": "<=",
    "impact_ratio": ">=",
}

Kind = Literal["none", "accurate", "single", "groups", "randomised", "blind"]
"""Kinds of thresholds, the simplest first: the model's own decision, the most accurate one, one within the target, one
per group, several per group; last the blind rule, which has a second model instead of thresholds."""
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "blind")
Repair = Literal["none", "single", "groups", "randomised", "blind"]
"""The least simple kind of thresholds that an answer may use. Simpler ones are tried too; beside `blind`, only those
that need no group at prediction."""

Scope = Literal["federation", "sites", "both"]
"""Where a target is to hold: over all rows together, at every site, or both."""

#: The names of the kinds in sentences and tables.
TITLES: dict[str, str] = {
    "none": "as trained",
    "accurate": "most accurate threshold",
    "single": "one threshold",
    "groups": "group thresholds",
    "randomised": "randomised group thresholds",
    "blind": "blind rule",
}

#: The default target of `ffalm compare`.
DEFAULT = "dpd <= 0.05"

_BOUND = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|<|>|=+)\s*([0-9.eE+-]+)\s*(%?)\s*")
#: A gap that equals its bound does so whatever the last bit of a division.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """One metric and the value that it must not exceed, or must not fall below if more is better."""

    metric: str
    value: float

    def __post_init__(self) -> None:
        if self.metric not in SIGNS:
            raise unknown("metric of a target", self.metric, SIGNS)
        require(
            math.isfinite(self.value) and 0 <= self.value <= 1,
            f"The bound of {self.metric} is a fraction from 0 to 1, such as 0.05 for 5 points; got {self.value:g}.",
        )

    @property
    def at_most(self) -> bool:
        """Whether the bound is an upper one."""
        return SIGNS[self.metric] == "<="

    def meets(self, value: float) -> bool:
        """Whether a value is within the bound; an undefined one is not."""
        return value <= self.value + ROUNDING if self.at_most else value >= self.value - ROUNDING

    def excess(self, value: float) -> float:
        """How far a value is beyond the bound; 0 if it is within, infinite if it is undefined."""
        if math.isnan(value):
            return math.inf
        return 0.0 if self.meets(value) else abs(value - self.value)

    def stricter(self, factor: float) -> Bound:
        """The bound at this share of its distance from equal rates, which is 0 for a gap and 1 for a ratio."""
        return Bound(self.metric, self.value * factor if self.at_most else 1 - (1 - self.value) * factor)

    def worst_end(self, interval: tuple[float, float]) -> float:
        """The end of a confidence interval that is compared with the bound."""
        return interval[1] if self.at_most else interval[0]

    def best_end(self, interval: tuple[float, float]) -> float:
        """The other end: what the rows leave possible."""
        return interval[0] if self.at_most else interval[1]

    def __str__(self) -> str:
        return f"{self.metric} {SIGNS[self.metric]} {self.value:g}"


@dataclass(frozen=True)
class Target:
    """One or more bounds, all of which are to hold."""

    bounds: tuple[Bound, ...]

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """A target from its text: `METRIC <= FRACTION`, several joined by commas."""
        if isinstance(text, Target):
            return text
        require(
            isinstance(text, str), f"A target is a text such as {DEFAULT!r} or 'dpd <= 0.05, eod <= 0.1'; got {text!r}."
        )
        bounds: dict[str, Bound] = {}
        for part in text.split(","):
            found = _BOUND.fullmatch(part)
            if found is None:
                raise UserError(f"The target {part.strip()!r} is not understood: write it as in {DEFAULT!r}.")
            metric, sign, number, percent = found.groups()
            try:
                value = float(number) / (100 if percent else 1)
            except ValueError:
                raise UserError(f"The bound {number!r} of {metric} is not a number.") from None
            bound = Bound(metric, value)
            require(
                sign == SIGNS[metric],
                f"A target on {metric} is written with {SIGNS[metric]}; got {part.strip()!r}.",
            )
            require(metric not in bounds, f"The target names {metric} twice: give one bound of each metric.")
            bounds[metric] = bound
        return cls(tuple(bounds.values()))

    def meets(self, metrics: Mapping[str, float]) -> bool:
        """Whether metrics are within every bound."""
        _check_metrics(metrics)
        return all(bound.meets(_number(metrics, bound)) for bound in self.bounds)

    def excess(self, metrics: Mapping[str, float]) -> float:
        """The largest distance beyond a bound."""
        _check_metrics(metrics)
        return max(bound.excess(_number(metrics, bound)) for bound in self.bounds)

    def __str__(self) -> str:
        return ", ".join(map(str, self.bounds))


def _check_metrics(metrics: Mapping[str, float]) -> None:
    require(isinstance(metrics, Mapping), f"Metrics must be a dict of numbers by name; got {short_repr(metrics)}.")


def _number(metrics: Mapping[str, float], bound: Bound) -> float:
    """The metric that a bound is about; NaN if it is undefined."""
    value = metrics.get(bound.metric, math.nan)
    require(isinstance(value, Real), f"The metric {bound.metric} must be a number; got {short_repr(value)}.")
    return value


def check_confidence(level: float | None) -> None:
    """Refuse a confidence outside 0.5 to 1. At 0.5 there is no margin: the gap itself must be within the target."""
    require(
        level is None or 0.5 <= require_number(level, "confidence of a target") < 1,
        f"The confidence of a target must be from 0.5 (no margin) to below 1, such as 0.95; got {level}.",
    )
