"""Fronts of accuracy against a fairness gap, and the hypervolume that they dominate.

A point is on the front of an algorithm if no other of its points is at least as accurate with a gap at most as large.
The hypervolume is the share of the box from the reference (a gap and an accuracy that any point should beat) to the
ideal (gap 0, accuracy 1) that the points dominate: one number by which whole fronts are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean, stdev
from typing import Any, Literal

from ffalm.errors import UserError, require
from ffalm.outcome import Outcome, degenerate
from ffalm.report.summary import t_interval
from ffalm.report.tables import Interval
from ffalm.targets.target import Target

Part = Literal["test", "held_out"]
Reference = tuple[float, float]
"""A gap and an accuracy."""


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first is at least as good in every respect and better in one; higher is better."""
    differences = [mine - theirs for mine, theirs in zip(one, other, strict=True)]
    return min(differences) >= 0 and max(differences) > 0


def hypervolume(points: Sequence[tuple[float, float]], reference: Reference) -> float:
    """The share of the box that points (gap, accuracy) dominate; undefined points dominate nothing."""
    widest, lowest = reference
    area, height = 0.0, lowest
    for gap, accuracy in sorted((gap, accuracy) for gap, accuracy in points if gap < widest):
        if accuracy > height:  # by increasing gap: each adds what the earlier ones did not reach
            area += (widest - gap) * (accuracy - height)
            height = accuracy
    box = widest * (1 - lowest)
    return area / box if box > 0 else math.nan


@dataclass(frozen=True)
class FrontPoint:
    """An algorithm with one choice of the settings that are swept."""

    label: str
    algorithm: str
    settings: dict[str, Any]  # those that are swept
    runs: tuple[Outcome, ...] = field(repr=False)  # the finished ones
    diverged: int = 0
    degenerate: str = ""  # why its models are degenerate; empty if they are not

    @property
    def usable(self) -> bool:
        """Whether every run finished with a model that is a result."""
        return self.diverged == 0 and bool(self.runs) and not self.degenerate

    def values(self, metric: str, part: Part = "test") -> list[float]:
        """A metric of each finished run; NaN if it is undefined."""
        return [getattr(run, part).get(metric, math.nan) for run in self.runs]

    def mean(self, metric: str, part: Part = "test") -> float:
        """The mean over seeds; NaN if a run has no value."""
        values = self.values(metric, part)
        return fmean(values) if values else math.nan

    def spread(self, metric: str, part: Part = "test") -> float | None:
        """The standard deviation over seeds; None with fewer than two."""
        values = self.values(metric, part)
        return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


@dataclass(frozen=True)
class Front:
    """The points of one algorithm."""

    algorithm: str
    metric: str
    points: tuple[FrontPoint, ...]
    reference: Reference

    @property
    def best(self) -> list[FrontPoint]:
        """The points on the front by means over seeds, smallest gap first."""
        usable = [one for one in self.points if one.usable and all(map(math.isfinite, self._place(one)))]
        best = [one for one in usable if not any(dominates(self._merits(other), self._merits(one)) for other in usable)]
        return sorted(best, key=self._place)

    @property
    def hypervolumes(self) -> list[float]:
        """The hypervolume of each seed; points that diverged or are degenerate dominate nothing.

        Of an interrupted study it is of the seeds that all other points have finished.
        """
        ended = [one for one in self.points if not one.diverged]
        sound = [not one.degenerate for one in ended]
        seeds = [{run.seed: run.test for run in one.runs} for one in ended]
        common = [seed for seed in (seeds[0] if seeds else ()) if all(seed in own for own in seeds)]
        return [
            hypervolume(
                [(own[seed][self.metric], own[seed]["accuracy"]) for own in compress(seeds, sound)], self.reference
            )
            for seed in common
        ]

    @property
    def hypervolume(self) -> float:
        """The mean over seeds."""
        values = self.hypervolumes
        return fmean(values) if values else math.nan

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the hypervolume within 0 and 1, Student's t over seeds; None as for `t_interval`."""
        found = t_interval(self.hypervolumes)
        return None if found is None else (max(0.0, found[0]), min(1.0, found[1]))

    def _place(self, one: FrontPoint) -> tuple[float, float]:
        return one.mean(self.metric), one.mean("accuracy")

    def _merits(self, one: FrontPoint) -> tuple[float, float]:
        gap, accuracy = self._place(one)
        return -gap, accuracy


def fronts_of(
    outcomes: Sequence[Outcome], members: Mapping[str, tuple[str, dict[str, Any]]], metric: str
) -> list[Front]:
    """One front for each algorithm; `members` gives the algorithm and the swept settings of each label.

    The reference is the largest gap of any run and the accuracy of always predicting the most frequent label.
    """
    points: dict[str, list[FrontPoint]] = {}
    for label, (algorithm, settings) in members.items():
        own = [run for run in outcomes if run.label == label]
        finished = tuple(run for run in own if run.diverged is None)
        lost = len(own) - len(finished)
        points.setdefault(algorithm, []).append(
            FrontPoint(label, algorithm, settings, finished, lost, degenerate(finished))
        )
    reference = reference_of([run for run in outcomes if run.diverged is None], metric)
    return [Front(algorithm, metric, tuple(own), reference) for algorithm, own in points.items()]


def best_at(fronts: Sequence[Front], target: Target) -> tuple[FrontPoint, Part]:
    """The most accurate point within a target, by means over seeds of held-out rows if there are any.

    Choosing on test rows would make the test scores of the choice optimistic.
    """
    points = [one for front in fronts for one in front.points if one.usable]
    part: Part = "held_out" if all(run.held_out for one in points for run in one.runs) else "test"
    wanted = [bound.metric for bound in target.bounds]
    within = [one for one in points if target.meets({metric: one.mean(metric, part) for metric in wanted})]
    require(bool(points), "No point of the sweep has finished with a sound model in every seed.")
    if not within:
        nearest = min(points, key=lambda one: target.excess({metric: one.mean(metric, part) for metric in wanted}))
        found = ", ".join(f"{metric} {nearest.mean(metric, part):.3f}" for metric in wanted)
        raise UserError(f"No point of the sweep meets {target}; the nearest is {nearest.label} with {found}.")
    return max(within, key=lambda one: one.mean("accuracy", part)), part


def reference_of(runs: Sequence[Outcome], metric: str) -> Reference:
    """The largest gap of any run, and the accuracy of always predicting the most frequent label."""
    gaps = [run.test.get(metric, math.nan) for run in runs]
    widest = max((gap for gap in gaps if math.isfinite(gap)), default=math.nan)
    majorities = [run.majority for run in runs if run.confusion is not None]
    lowest = fmean(majorities) if majorities else min((run.test["accuracy"] for run in runs), default=math.nan)
    return widest, lowest
