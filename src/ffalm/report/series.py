"""The lines of the curves: mean and range over the runs by round.

They are computed here and not by the page, which then holds a few numbers per round instead of all runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from ffalm.outcome import HEADLINE, Outcome, Record, StudyOutcome, duals
from ffalm.report.summary import pick

Point = dict[str, Any]
"""One round of one line: its names, `round`, and `mean`, `low`, `high` over the `runs` that have a value."""

Line = list[Point]

#: A line is no wider than a few hundred pixels, so more rounds than this are thinned before drawing.
MAX_POINTS = 240
#: All lines together; with very many of them each is thinned further, but never below `MIN_POINTS`.
ALL_POINTS = 5000
MIN_POINTS = 40

#: The headings of the panels.
TITLES = {metric: f"{name} {'↑' if up else '↓'} ({'%' if up else 'points'})" for metric, (name, up) in HEADLINE.items()}


def metric_points(study: StudyOutcome) -> list[Point]:
    """Validation metrics by round in percent, for every skew, algorithm and metric."""
    lines: list[Line] = []
    for alpha, label, runs in _groups(study):
        for metric, title in TITLES.items():
            named = {"alpha": alpha, "metric": title, "algorithm": label}
            lines.append([named | point for point in _line(runs, partial(_metric, metric), 100.0, 3)])
    return _thinned(lines)


def dual_points(study: StudyOutcome) -> list[Point]:
    """The server's duals by round, one line for each component that an algorithm keeps."""
    lines: list[Line] = []
    for alpha, label, runs in _groups(study):
        width = max((len(duals(record)) for run in runs for record in run.history), default=0)
        groups = study.group_names if width == len(study.group_names) else study.compared
        names = _dual_names(width, groups if label in study.duals_by_group else ())
        for index in range(width):
            named = {"alpha": alpha, "component": names[index], "algorithm": label}
            lines.append([named | point for point in _line(runs, partial(_dual, index), 1.0, 5)])
    return _thinned(lines)


def _dual_names(width: int, groups: Sequence[str]) -> list[str]:
    """Names by group for one dual per group, or for one per group against the first; else numbers."""
    if width == len(groups):
        return [f"dual of {group}" for group in groups]
    if width > 1 and width == len(groups) - 1:
        return [f"dual of {groups[0]} against {group}" for group in groups[1:]]
    return [f"dual {index + 1}" for index in range(width)]


def _groups(study: StudyOutcome) -> Iterator[tuple[float | None, str, list[Outcome]]]:
    for alpha in study.alphas():
        for label in study.labels():
            yield alpha, label, pick(study, alpha, label)


def _line(runs: list[Outcome], read: Callable[[Record], float], scale: float, digits: int) -> Line:
    """Mean, lowest and highest of each round over the runs that have a value there.

    A run that diverged takes part up to its last finite value, kept as `stopped` so that the chart can mark
    where it ended; without the mark, the mean would seem to recover there.
    """
    rounds: dict[int, list[float]] = {}
    stopped: dict[int, float] = {}
    for run in runs:
        values = {int(record["round"]): scale * read(record) for record in run.history}
        finite = {number: value for number, value in values.items() if math.isfinite(value)}
        for number, value in finite.items():
            rounds.setdefault(number, []).append(value)
        if run.diverged is not None and finite:
            last = max(finite)
            stopped[last] = max(finite[last], stopped.get(last, 0.0), key=abs)
    return [_point(number, rounds[number], stopped.get(number), digits) for number in sorted(rounds)]


def _point(number: int, values: list[float], stopped: float | None, digits: int) -> Point:
    point: Point = {
        "round": number,
        "mean": round(fmean(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
        "runs": len(values),
    }
    return point if stopped is None else {**point, "stopped": round(stopped, digits)}


def _thinned(lines: list[Line]) -> list[Point]:
    """The points of all lines, thinned evenly where there are too many to draw.

    Each line keeps its first and last round and every round in which a run diverged.
    """
    most = min(MAX_POINTS, max(MIN_POINTS, ALL_POINTS // max(1, len(lines))))
    return [point for line in lines for point in _thinned_line(line, most)]


def _thinned_line(line: Line, most: int) -> Line:
    if len(line) <= most:
        return line
    step = (len(line) - 1) / (most - 1)
    kept = {round(index * step) for index in range(most)}
    return [point for index, point in enumerate(line) if index in kept or "stopped" in point]


def _metric(name: str, record: Record) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _dual(index: int, record: Record) -> float:
    found = duals(record)
    return found[index] if index < len(found) else math.nan
