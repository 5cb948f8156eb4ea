"""Small plots for the page, drawn by its template as SVG that follows the page's colours and needs no script.

A `Plot` holds marks and lines in the numbers that its axes show; `Plot.at` places them in the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Place = tuple[float, float]
Tick = tuple[float, str]

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42
#: Room between the outermost mark and the end of its axis, as a share of the axis.
_ROOM = 0.06


@dataclass(frozen=True)
class Mark:
    """A point: one run, a mean of runs, a model with fitted thresholds, the answer, or a degenerate run."""

    x: float
    y: float
    kind: Literal["seed", "mean", "fitted", "answer", "degenerate"]
    colour: int  # place in the palette
    about: str = ""  # shown under the pointer


@dataclass(frozen=True)
class Line:
    """A line through points, or a vertical or horizontal reference line with a label."""

    points: Sequence[Place]
    kind: Literal["front", "target", "majority", "series", "spread"]
    colour: int = 0
    label: str = ""


@dataclass(frozen=True)
class Plot:
    """One panel."""

    about: str  # the plot in words, for those who cannot see it
    x_title: str
    y_title: str
    marks: Sequence[Mark]
    lines: Sequence[Line] = ()
    x_ticks: Sequence[Tick] = ()  # of an axis with names; left out, the axis shows numbers from 0
    note: str = ""  # about what lies outside the drawing
    zero: bool = field(default=True)  # whether the axis below starts at 0

    @cached_property
    def x_axis(self) -> tuple[float, float, Sequence[Tick]]:
        """Both ends and the ticks of the axis below."""
        if self.x_ticks:
            return -0.5, len(self.x_ticks) - 0.5, self.x_ticks
        return axis(self._values(0), start=0.0 if self.zero else None)

    @cached_property
    def y_axis(self) -> tuple[float, float, Sequence[Tick]]:
        """Both ends and the ticks of the axis on the left."""
        return axis(self._values(1))

    def at(self, x: float, y: float) -> Place:
        """Where a point is drawn; infinite values lie at the edge."""
        (left, right, _), (low, high, _) = self.x_axis, self.y_axis
        across = min(max((x - left) / (right - left), 0.0), 1.0)
        up = min(max((y - low) / (high - low), 0.0), 1.0)
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1
        )

    def path(self, line: Line) -> str:
        """A line as the points of an SVG polyline."""
        return " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in line.points))

    def _values(self, side: int) -> list[float]:
        found = [(mark.x, mark.y)[side] for mark in self.marks] + [p[side] for line in self.lines for p in line.points]
        return [value for value in found if math.isfinite(value)]


def axis(values: Iterable[float], start: float | None = None) -> tuple[float, float, list[Tick]]:
    """The ends of an axis that shows these values, and about five round numbers on it."""
    found = list(values) or [0.0, 1.0]
    low, high = (min(found) if start is None else start), max(found)
    room = max(high - low, 1e-3 * max(abs(high), 1.0)) * _ROOM
    low, high = (low - room if start is None else start), high + room
    step = _round_step((high - low) / 5)
    first, last = math.ceil(low / step), math.floor(high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return low, high, [(number * step, f"{number * step:.{digits}f}") for number in range(first, last + 1)]


def step_line(points: Sequence[Place]) -> list[Place]:
    """What points by rising gap reach: level until the next one."""
    found: list[Place] = []
    for gap, accuracy in points:
        if found:
            found.append((gap, found[-1][1]))
        found.append((gap, accuracy))
    return found


def _round_step(step: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))
