"""The figures of `census_figures.toml`, which says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffalm.system import toml

Shares = tuple[float, ...]  # one per cell

_FIGURES = toml.beside(__file__)
CELLS: tuple[tuple[int, int], ...] = tuple((group, label) for group, label in _FIGURES["cells"])
CELL_SHARES: Shares = tuple(_FIGURES["cell_shares"])


def _category(row: list[Any]) -> Any:
    """What a row of a column names: one entry, or a tuple of several."""
    names = row[: -len(CELLS)]
    return names[0] if len(names) == 1 else tuple(names)


#: The columns in the order of `CORRELATIONS`: each category with its share in every cell.
COLUMNS: dict[str, Mapping[Any, Shares]] = {
    column: {_category(row): tuple(row[-len(CELLS) :]) for row in rows} for column, rows in _FIGURES["columns"].items()
}
#: For each cell, the correlations below the diagonal.
CORRELATIONS: tuple[tuple[Shares, ...], ...] = tuple(
    tuple(map(tuple, below)) for below in _FIGURES["correlations"].values()
)
