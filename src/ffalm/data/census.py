"""A synthetic census: a table that needs no file, generated from published statistics of UCI Adult.

Within each cell of sex and income, every column has its published distribution and every pair of columns its published
correlation (a Gaussian copula). Classifiers reach about the accuracy and the fairness gaps that they have on UCI Adult;
no row describes a real person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data.encoding import RawTable
from ffalm.data.owners import with_owners
from ffalm.data.splits import split_rows
from ffalm.data.types import Dataset, Task
from ffalm.randomness import Purpose, generator
from ffalm.settings import described
from ffalm.system import toml
from ffalm.system.memory import require_room

Shares = tuple[float, ...]  # one per cell

_FIGURES = toml.beside(__file__)
CELLS: tuple[tuple[int, int], ...] = tuple((group, label) for group, label in _FIGURES["cells"])
CELL_SHARES: Shares = tuple(_FIGURES["cell_shares"])


def _category(row: list[Any]) -> Any:
    """The category that a row of figures is about: one entry, or a tuple of several."""
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


Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Training, validation and test shares.
PARTS = (0.7, 0.1, 0.2)
_BYTES_A_ROW = 900  # measured, at the peak of `load`
FEWEST_ROWS = 100
SPOUSE = {0: "Wife", 1: "Husband"}
TASK = Task(
    name="census",
    label="income over 50K",
    group="sex",
    label_names=("no", "yes"),
    group_names=("female", "male"),
)


@dataclass(frozen=True)
class Census:
    """Rows drawn by `data_seed`; sex stays a feature, as in `Adult`, because household reveals it anyway.

    With `use_group_as_feature=False` it is left out. The four cells of sex and income have exact shares under every
    seed: base rates do not vary between seeds.
    """

    name: ClassVar[str] = "census"
    about: ClassVar[str] = "generated people with UCI Adult's figures (no files)"
    asks: ClassVar[str] = "income over 50K (favourable), by sex: female, male"
    needs_files: ClassVar[bool] = False

    rows: int = described("People to generate.", 45_000, least=FEWEST_ROWS, most=10**8)
    data_seed: int = described("Seed of the generated people.", 0, least=0)
    use_group_as_feature: bool = described("Whether sex is a feature too.", True)
    owner: str | None = described("Column of text whose values are the data owners.", None)

    def load(self) -> Dataset:
        """Draw the people, split them 70/10/20 and encode them by the training part."""
        return self.read().encoded()

    def read(self) -> RawTable:
        """The table before it is encoded."""
        require_room(_BYTES_A_ROW * self.rows, f"{self.rows:,} people", "ask for fewer rows")
        draw = generator(self.data_seed, Purpose.DATA)
        cells = _cells(self.rows, draw)
        group, y = np.array(CELLS, dtype=np.int64)[cells].T
        people = _people(_categories(cells, draw), group, draw)
        table = RawTable(
            task=TASK,
            features=people if self.use_group_as_feature else people.drop(columns="sex"),
            y=y.copy(),
            group=group.copy(),
            parts=split_rows(cells, PARTS, self.data_seed),
            notes=("These people are generated from published figures of UCI Adult; none of them exists.",),
        )
        return with_owners(table, self.owner)


def _cells(rows: int, draw: np.random.Generator) -> Codes:
    """A cell for each person, in random order and in the published shares as exactly as whole rows allow."""
    ends = np.round(np.cumsum(CELL_SHARES) / sum(CELL_SHARES) * rows).astype(np.int64)
    return draw.permutation(np.repeat(np.arange(len(CELLS)), np.diff(ends, prepend=0)))


def _categories(cells: Codes, draw: np.random.Generator) -> dict[str, Codes]:
    """For each column, everybody's category as an index into its table of figures."""
    normal = draw.standard_normal((len(cells), len(COLUMNS)))
    codes = {name: np.empty(len(cells), dtype=np.int64) for name in COLUMNS}
    for cell in range(len(CELLS)):
        rows = np.flatnonzero(cells == cell)
        correlated = normal[rows] @ np.linalg.cholesky(_correlation(cell)).T
        for number, (name, table) in enumerate(COLUMNS.items()):
            shares = [by_cell[cell] for by_cell in table.values()]
            codes[name][rows] = np.searchsorted(_cuts(shares), correlated[:, number])
    return codes


def _correlation(cell: int) -> Floats:
    """The whole correlation matrix of one cell."""
    matrix = np.eye(len(COLUMNS))
    for row, below in enumerate(CORRELATIONS[cell]):
        matrix[row, :row] = matrix[:row, row] = below
    return matrix


def _cuts(shares: list[float]) -> Floats:
    """Where to cut a standard normal variable so that its pieces have these shares."""
    ends = np.cumsum(shares) / np.sum(shares)
    return np.array([_quantile(float(end)) for end in ends[:-1]])


def _quantile(share: float) -> float:
    """The standard normal quantile, infinite if nothing or everything lies below."""
    if 0 < share < 1:
        return NormalDist().inv_cdf(share)
    return float("-inf") if share <= 0 else float("inf")


def _people(codes: dict[str, Codes], group: Codes, draw: np.random.Generator) -> pd.DataFrame:
    """Features named and coded as in UCI Adult; within a band every number is equally likely."""
    marital, relationship = _entries("household", codes, 0), _entries("household", codes, 1)
    occupation = _entries("occupation", codes)
    kind, dollars = _entries("capital", codes, 0), _amounts("capital", codes, draw, low=1)
    spouse = np.array([SPOUSE[0], SPOUSE[1]], dtype=object)[group]
    columns = {
        "age": _amounts("age", codes, draw),
        "workclass": np.where(occupation == "?", "?", _entries("workclass", codes)),
        "education": _entries("education", codes, 0),
        "education-num": _entries("education", codes, 1).astype(np.float64),
        "marital-status": marital,
        "occupation": occupation,
        "relationship": np.where(relationship == "Spouse", spouse, relationship),
        "race": _entries("race", codes),
        "sex": np.array(["Female", "Male"], dtype=object)[group],
        "capital-gain": np.where(kind == "gain", dollars, 0.0),
        "capital-loss": np.where(kind == "loss", dollars, 0.0),
        "hours-per-week": _amounts("hours", codes, draw),
        "native-country": _entries("country", codes),
    }
    return pd.DataFrame(columns)


def _entries(column: str, codes: dict[str, Codes], part: int | None = None) -> NDArray[np.object_]:
    """Everybody's category of a column, or one part of it where categories are tuples."""
    keys = list(COLUMNS[column])
    return np.array(keys if part is None else [key[part] for key in keys], dtype=object)[codes[column]]


def _amounts(column: str, codes: dict[str, Codes], draw: np.random.Generator, low: int = 0) -> Floats:
    """A whole number for everybody from the band of their category, whose ends are entries `low` and next."""
    lows, highs = np.array([key[low : low + 2] for key in COLUMNS[column]], dtype=np.int64).T
    drawn: Codes = draw.integers(lows[codes[column]], highs[codes[column]], endpoint=True)
    return drawn.astype(np.float64)
