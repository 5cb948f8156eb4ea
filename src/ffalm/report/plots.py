"""Plots as SVG without a script, drawn by `assets/plot.html`: the page and the sheet each define the colours.

A `Plot` holds marks and lines in the numbers that its axes show; `Plot.at` places them in the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Place = tuple[float, float]
Tick = tuple[float, str]

Size = tuple[int, int]
XScale = Literal["from zero", "linear", "rounds", "log"]
YScale = Literal["linear", "symlog", "log"]
MarkKind = Literal["seed", "mean", "fitted", "answer", "degenerate", "stopped"]

WIDTH, HEIGHT = 420, 300
#: Of panels of which three fit in a row.
SMALL: Size = (320, 220)
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42
#: Left of an axis without a title.
LEFT_UNTITLED = 46
#: Room between the outermost mark and the end of its axis, as a share of the axis.
_ROOM = 0.06
_NOT_MUCH_SMALLER = 0.75
#: Values that differ by less than this share of the largest have more room around them: the numbers on the axis would
#: be too long to show.
_ALIKE, _ROOM_ALIKE = 1e-3, 2.5e-3
_MOST_DECIMALS = 3  # of a number on an axis; smaller ones are written as 2e-05


@dataclass(frozen=True)
class Mark:
    """A point: one run, a mean of runs, thresholds fitted, the answer, a degenerate run, or where a run ended."""

    x: float
    y: float
    kind: MarkKind
    colour: int  # place in the palette
    about: str = ""  # shown under the pointer


@dataclass(frozen=True)
class Line:
    """A line through points, the outline of a band, or a reference line with a label."""

    points: Sequence[Place]
    kind: Literal["front", "target", "majority", "series", "spread", "curve", "band", "guide"]
    colour: int = 0
    label: str = ""
    dash: str = ""  # as SVG's stroke-dasharray


@dataclass(frozen=True)
class Plot:
    """One panel."""

    about: str  # the plot in words, for screen readers
    x_title: str
    y_title: str
    marks: Sequence[Mark]
    lines: Sequence[Line] = ()
    x_ticks: Sequence[Tick] = ()  # of an axis with names; left out, the axis shows numbers
    note: str = ""  # about what lies outside the drawing
    title: str = ""
    size: Size = (WIDTH, HEIGHT)
    x_scale: XScale = "from zero"  # "rounds" reaches from the first round to the last
    y_scale: YScale = "linear"  # "symlog" is linear about 0 and logarithmic beyond 1

    @cached_property
    def x_axis(self) -> tuple[float, float, Sequence[Tick]]:
        """Both ends and the ticks of the axis below."""
        if self.x_ticks:
            return -0.5, len(self.x_ticks) - 0.5, self.x_ticks
        if self.x_scale == "from zero":
            return axis(self._values(0), start=0.0)
        return _AXES[self.x_scale](self._values(0))

    @cached_property
    def y_axis(self) -> tuple[float, float, Sequence[Tick]]:
        """Both ends and the ticks of the axis on the left."""
        return _AXES[self.y_scale](self._values(1))

    @property
    def left(self) -> int:
        """The left edge of the drawing, right of the numbers."""
        return LEFT if self.y_title else LEFT_UNTITLED

    def at(self, x: float, y: float) -> Place:
        """The position of a point; infinite values are at the edge."""
        width, height = self.size
        across = _share(x, *self.x_axis[:2], _PLACES.get(self.x_scale, float))
        up = _share(y, *self.y_axis[:2], _PLACES.get(self.y_scale, float))
        down = height - BOTTOM - up * (height - TOP - BOTTOM)
        return round(self.left + across * (width - self.left - RIGHT), 1), round(down, 1)

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
    largest = max(abs(low), abs(high))
    apart = high - low > _ALIKE * largest
    room = (high - low) * _ROOM if apart else max(_ROOM_ALIKE * largest, _ROOM)
    low, high = (low - room if start is None else start), high + room
    step = _round_step((high - low) / 5)
    first, last = math.ceil(low / step), math.floor(high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    form = f".{digits}f" if digits <= _MOST_DECIMALS else ".4g"
    return low, high, [(number * step, f"{number * step:{form}}") for number in range(first, last + 1)]


def rounds_axis(values: Iterable[float]) -> tuple[float, float, list[Tick]]:
    """The axis from the first round to the last, with whole numbers on it."""
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    if low == high:
        return low - 0.5, high + 0.5, [(low, f"{low:.0f}")]
    step = max(1.0, _round_step((high - low) / 5))
    first, last = math.ceil(low / step), math.floor(high / step)
    return low, high, [(number * step, f"{number * step:.0f}") for number in range(first, last + 1)]


def symlog(value: float) -> float:
    """Sign and log(1 + |value|): linear about 0, logarithmic beyond 1."""
    return math.copysign(math.log1p(abs(value)), value)


def symlog_axis(values: Iterable[float]) -> tuple[float, float, list[Tick]]:
    """The ends of such an axis, with a few powers of ten and 0 on it."""
    found = list(values)
    low, high = min(0.0, *found), max(0.0, *found)
    decades = math.floor(math.log10(max(abs(low), abs(high), 1.0)))
    powers = [10.0**exponent for exponent in range(decades, -1, -1 - decades // 3)]
    ticks = [-power for power in powers] + [0.0, *reversed(powers)]
    return low, high, [(tick, f"{tick:g}") for tick in ticks if low <= tick <= high]


def log_axis(values: Iterable[float]) -> tuple[float, float, list[Tick]]:
    """The ends of a logarithmic axis, with a few powers of ten on it."""
    found = list(values) or [1.0, 10.0]
    low, high = math.log10(min(found)), math.log10(max(found))
    room = max(high - low, 0.1) * _ROOM
    low, high = low - room, high + room
    powers = range(math.ceil(low), math.floor(high) + 1, max(1, round((high - low) / 6)))
    return 10**low, 10**high, [(10.0**power, f"10{str(power).translate(_RAISED)}") for power in powers]


_RAISED = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_AXES: dict[str, Callable[[Iterable[float]], tuple[float, float, list[Tick]]]] = {
    "linear": axis,
    "rounds": rounds_axis,
    "symlog": symlog_axis,
    "log": log_axis,
}
_PLACES: dict[str, Callable[[float], float]] = {"symlog": symlog, "log": math.log10}


def step_line(points: Sequence[Place]) -> list[Place]:
    """The step line through points in order of rising gap: level until the next one."""
    found: list[Place] = []
    for gap, accuracy in points:
        if found:
            found.append((gap, found[-1][1]))
        found.append((gap, accuracy))
    return found


def _share(value: float, low: float, high: float, place: Callable[[float], float]) -> float:
    """The position of a value between both ends, from 0 to 1."""
    return min(max((place(value) - place(low)) / (place(high) - place(low)), 0.0), 1.0)


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 5 or 10 times a power of ten that is not much smaller than `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * _NOT_MUCH_SMALLER)
