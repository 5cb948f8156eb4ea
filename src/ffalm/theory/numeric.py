"""Roots and extrema of smooth functions of one variable: a dense grid to find them all, then refinement.

Small enough to be read, so that the paper's constants rest on nothing but these lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

GRID = 20_001
_GOLDEN = (math.sqrt(5) - 1) / 2


def roots(function: Function, low: float, high: float) -> list[float]:
    """Every root between two points of the grid at which the sign changes, to the last bit, in order."""
    grid = np.linspace(low, high, GRID)
    values = function(grid)
    brackets = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    crossed = [_bisect(function, float(grid[at]), float(grid[at + 1])) for at in brackets]
    return sorted([*crossed, *grid[values == 0].tolist()])


def smallest(function: Function, low: float, high: float) -> tuple[float, float]:
    """Where a function is smallest on an interval, and its value there."""
    grid = np.linspace(low, high, GRID)
    best = int(np.argmin(function(grid)))
    return _golden(function, float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)]))


def largest(function: Function, low: float, high: float) -> tuple[float, float]:
    """Where a function is largest on an interval, and its value there."""
    at, value = smallest(lambda points: -function(points), low, high)
    return at, -value


def _at(function: Function, point: float) -> float:
    return float(function(np.asarray(point)))


def _bisect(function: Function, low: float, high: float) -> float:
    sign = math.copysign(1.0, _at(function, low))
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if math.copysign(1.0, _at(function, middle)) == sign:
            low = middle
        else:
            high = middle


def _golden(function: Function, low: float, high: float) -> tuple[float, float]:
    """Golden section; the ends are candidates too, because an extremum may lie on the edge of the interval."""
    ends = [(_at(function, end), end) for end in (low, high)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    while high - low > 1e-10:
        if _at(function, left) < _at(function, right):
            high, right = right, left
            left = high - _GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + _GOLDEN * (high - low)
    middle = (low + high) / 2
    value, at = min([*ends, (_at(function, middle), middle)])
    return at, value
