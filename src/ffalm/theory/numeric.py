"""Roots and extrema of smooth functions of one variable: a dense grid to find them all, then refinement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

GRID = 20_001


def roots(function: Function, low: float, high: float) -> list[float]:
    """Every root between two points of the grid at which the sign changes, to the last bit, in order."""
    grid = np.linspace(low, high, GRID)
    values = function(grid)
    brackets = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    crossed = [_bisect(function, float(grid[at]), float(grid[at + 1])) for at in brackets]
    return sorted([*crossed, *grid[values == 0].tolist()])


def smallest(function: Function, low: float, high: float) -> tuple[float, float]:
    """Where a function is smallest on an interval, and its value there: a grid, refined around its best point."""
    while True:
        grid = np.linspace(low, high, GRID)
        values = function(grid)
        best = int(np.argmin(values))
        if high - low < 1e-9:
            return float(grid[best]), float(values[best])
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)])


def largest(function: Function, low: float, high: float) -> tuple[float, float]:
    """Where a function is largest on an interval, and its value there."""
    at, value = smallest(lambda points: -function(points), low, high)
    return at, -value


def _bisect(function: Function, low: float, high: float) -> float:
    sign = np.sign(function(np.asarray(low)))
    while (middle := (low + high) / 2) not in (low, high):
        if np.sign(function(np.asarray(middle))) == sign:
            low = middle
        else:
            high = middle
    return middle
