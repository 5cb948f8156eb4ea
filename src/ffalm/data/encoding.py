"""Encoding of table columns by statistics that sites can share without sharing rows.

Numeric columns are standardised, those with a long tail after taking the fourth root; categories are one-hot encoded.
The statistics come from `TableSummary`s, which are added with `+`: sites sum theirs, build the same `TableEncoding`
from the sum and save it with the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffalm.arrays import inferred
from ffalm.data import compact_features
from ffalm.data.category_lookup import category_positions, distinct
from ffalm.data.compact_features import CompactFeatures
from ffalm.data.types import Dataset, Examples, Task
from ffalm.data.written_numbers import decimal_mark
from ffalm.errors import PublicError, UserError, require
from ffalm.system.files import parsed_json
from ffalm.system.spilled_arrays import ColumnsInRows, release_pages, too_large

if TYPE_CHECKING:
    from ffalm.data.preprocessing import Preprocessing

#: A variance below this share of the mean square is rounding error if it is found by sums: the column is constant.
ROUNDING = 1e-13
#: Where it is below this share, sums lose digits of it, and the squared deviations are added up too.
CANCELLED = 1e-6
#: What to do about rows without a number in a column that cannot be dropped.
FILL_OR_LEAVE_OUT = "fill them in or leave those rows out"
_LAST_BITS = 1e-28  # the same as `ROUNDING` for deviations: numbers that differ in their last bits alone
_LONG_TAIL = 2.0  # standard deviation over mean of numbers that are not negative (log-normal: sigma 1.27)
FARTHEST = 1e15  # standard deviations from the mean: products of such features are finite in every layer


@dataclass(frozen=True)
class NumericSummary:
    """Statistics of a numeric column: count, sum and sum of squares, also of the fourth roots of its values.

    The latter are infinite if a value is negative. `missing` further rows have no value. `deviations` is the sum of
    squared deviations from the mean, if these are too small to follow from the sum of squares, as those of numbers such
    as 10,000,003, which differ little from their mean.
    """

    count: int
    total: float
    squares: float
    roots: float = math.inf
    root_squares: float = math.inf
    missing: int = 0
    deviations: float | None = None

    def __add__(self, other: NumericSummary) -> NumericSummary:
        pairs = zip(astuple(self)[:-1], astuple(other)[:-1], strict=True)
        return replace(NumericSummary(*(one + two for one, two in pairs)), deviations=self._joined_deviations(other))

    def _joined_deviations(self, other: NumericSummary) -> float | None:
        """S = S1 + S2 + (m1 - m2)^2 n1 n2 / (n1 + n2); None if it follows from the sums of squares."""
        if self.deviations is None and other.deviations is None:
            return None
        apart = 0.0
        if self.count and other.count:
            between = self.total / self.count - other.total / other.count
            apart = between * between * self.count * other.count / (self.count + other.count)
        found = self._deviations() + other._deviations() + apart
        return found if found < CANCELLED * (self.squares + other.squares) else None

    def _deviations(self) -> float:
        if self.deviations is not None or not self.count:
            return self.deviations or 0.0
        return max(0.0, self.squares - self.total / self.count * self.total)

    @property
    def rows(self) -> int:
        """All rows, with and without a value."""
        return self.count + self.missing

    def filled(self) -> NumericSummary:
        """The summary of the same rows, where missing values are the mean of the others."""
        if not self.missing or not self.count:
            return self
        mean = self.total / self.count
        root = math.sqrt(math.sqrt(mean)) if mean >= 0 else math.inf
        many = self.missing
        added = NumericSummary(many, many * mean, many * mean * mean, many * root, many * root * root, 0, 0.0)
        return replace(self, missing=0) + added


@dataclass(frozen=True)
class CategorySummary:
    """Statistics of a categorical column: the count of each category; `None` is a missing value."""

    counts: dict[str | None, int]

    def __add__(self, other: CategorySummary) -> CategorySummary:
        both = [*self.counts, *(category for category in other.counts if category not in self.counts)]
        return CategorySummary(
            {category: self.counts.get(category, 0) + other.counts.get(category, 0) for category in both}
        )


ColumnSummary = NumericSummary | CategorySummary


@dataclass(frozen=True)
class TableSummary:
    """The summaries of all feature columns by name; the sum of two is the summary of all their rows."""

    columns: dict[str, ColumnSummary]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> TableSummary:
        """The summary of these rows; an encoding depends on nothing else."""
        return cls.of_rows(frame, None)

    @classmethod
    def of_rows(cls, frame: pd.DataFrame, rows: NDArray[np.int64] | None, gaps: bool = False) -> TableSummary:
        """The summary of these row numbers, None for all; one column is read at a time.

        With `gaps` numbers may be missing, and are counted.
        """
        found: dict[str, ColumnSummary] = {}
        for name in frame.columns:
            found[str(name)] = _summarise(frame[name] if rows is None else frame[name].iloc[rows], gaps)
            release_pages()
        return cls(found)

    def __add__(self, other: TableSummary) -> TableSummary:
        apart = sorted(self.columns.keys() ^ other.columns.keys())
        require(not apart, f"Two tables that are to have one encoding differ in the columns {', '.join(apart)}.")
        return TableSummary({name: _added(name, column, other.columns[name]) for name, column in self.columns.items()})

    def to_json(self) -> str:
        """As JSON; category counts are pairs because a missing value has no name."""
        columns = {
            name: {"counts": list(column.counts.items())} if isinstance(column, CategorySummary) else asdict(column)
            for name, column in self.columns.items()
        }
        return json.dumps(
            {
                name: {k: v for k, v in one.items() if (k, v) not in (("missing", 0), ("deviations", None))}
                for name, one in columns.items()
            }
        )

    @classmethod
    def from_json(cls, text: str) -> TableSummary:
        """The summary that `to_json` wrote."""
        columns: dict[str, ColumnSummary] = {}
        for name, fields in _parsed(text, "table summary").items():
            if "counts" in fields:
                columns[name] = CategorySummary(dict(fields["counts"]))
            else:
                columns[name] = NumericSummary(**fields)
        return cls(columns)


def _added(name: str, one: ColumnSummary, other: ColumnSummary) -> ColumnSummary:
    if isinstance(one, NumericSummary) and isinstance(other, NumericSummary):
        return one + other
    if isinstance(one, CategorySummary) and isinstance(other, CategorySummary):
        return one + other
    raise UserError(f"The column {name!r} holds numbers in one table and text in another: make them alike.")


@dataclass(frozen=True)
class NumericColumn:
    """A column that becomes (value - mean) / scale; a scale of 0 marks a constant column, which becomes 0.

    With a long tail most values lie within a small part of a standard deviation, and a network needs many steps to
    separate them. Fourth roots of such a column are standardised instead: like logarithms, and defined for 0.
    """

    name: str
    mean: float
    scale: float
    root: tuple[float, float] | None = None  # mean and scale of the fourth roots, where these are used

    def standardised(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The feature of each value."""
        if self.scale == 0:
            return np.zeros(len(values))
        if self.root is not None:
            mean, scale = self.root
            return (np.sign(values) * np.sqrt(np.sqrt(np.abs(values))) - mean) / scale
        return (values - self.mean) / self.scale


@dataclass(frozen=True)
class CategoryColumn:
    """A column that becomes one 0/1 feature per category seen in training; others become all zeros."""

    name: str
    categories: tuple[str | None, ...]


@dataclass(frozen=True)
class TableEncoding:
    """How every feature column becomes numbers, fixed by training rows alone and saved with the model."""

    columns: tuple[NumericColumn | CategoryColumn, ...]

    @classmethod
    def of(cls, summary: TableSummary, long_tails: bool = False) -> TableEncoding:
        """The encoding of a summary; columns are sorted by name, so the order of sites and files does not matter.

        With `long_tails`, columns that have one are encoded by their fourth roots.
        """
        return cls(tuple(_column(name, summary.columns[name], long_tails) for name in sorted(summary.columns)))

    @property
    def features(self) -> tuple[str, ...]:
        """The name of each encoded feature, such as `age` or `sex=Female`."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, NumericColumn):
                names.append(column.name)
            else:
                names += [f"{column.name}={'(missing)' if c is None else c}" for c in column.categories]
        return tuple(names)

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """The rows as float32 features; columns the encoding does not know are left out."""
        return self.compact(frame, [np.arange(len(frame))])[0].dense()

    def compact(self, frame: pd.DataFrame, parts: Sequence[NDArray[np.int64]]) -> list[CompactFeatures]:
        """The same for parts of the rows, without the zeros of one-hot columns; one column is read at a time."""
        width, start = len(self.features), 0
        numeric = [column for column in self.columns if isinstance(column, NumericColumn)]
        coded = len(self.columns) - len(numeric)
        kind = np.dtype(np.int16 if width <= np.iinfo(np.int16).max else np.int32)
        spilled = too_large(sum(map(len, parts)) * (4 * len(numeric) + kind.itemsize * coded))
        numbers = ColumnsInRows(parts, len(frame), len(numeric), np.float32, spilled)
        codes = ColumnsInRows(parts, len(frame), coded, kind, spilled)
        places: list[int] = []
        for column in self.columns:
            if column.name not in frame.columns:
                raise PublicError(f"The table lacks the column {column.name!r} that the encoding was made with.")
            if isinstance(column, NumericColumn):
                numbers.add(_standardised(frame[column.name], column))
                places.append(start)
                start += 1
            else:
                found = category_positions(frame[column.name], column.categories)
                codes.add(np.where(found >= 0, start + found, -1))
                start += len(column.categories)
            release_pages()
        at = torch.tensor(places, dtype=torch.int64)
        both = zip(numbers.finished(), codes.finished(), strict=True)
        return [CompactFeatures(torch.from_numpy(own), at, torch.from_numpy(ones), width) for own, ones in both]

    def to_json(self) -> str:
        """As JSON, to be saved with a model."""
        columns = [asdict(column) for column in self.columns]
        return json.dumps({"columns": [{k: v for k, v in one.items() if (k, v) != ("root", None)} for one in columns]})

    @classmethod
    def from_json(cls, text: str) -> TableEncoding:
        """The encoding that `to_json` wrote."""
        parsed = _parsed(text, "table encoding")
        try:
            return cls(tuple(_column_of(fields) for fields in parsed["columns"]))
        except (ValueError, LookupError, TypeError):
            raise UserError("This table encoding is incomplete: restore the file.") from None


@dataclass(frozen=True)
class RawTable:
    """A table that is read, coded and split but not encoded: sites first agree on an encoding."""

    task: Task
    features: pd.DataFrame
    y: NDArray[np.int64]
    group: NDArray[np.int64]
    parts: Sequence[NDArray[np.int64]]  # row numbers of the training, validation and test part
    owner: NDArray[np.int64] | None = None  # a code for each row, -1 for an owner without training rows
    owner_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None  # all of it but the encoding
    long_tails: bool = False  # as in `TableEncoding.of`

    def summary(self) -> TableSummary:
        """The summary of the training rows; validation and test rows never influence the encoding."""
        return TableSummary.of_rows(self.features, self.parts[0])

    def encoded(self, encoding: TableEncoding | None = None) -> Dataset:
        """The data set under an agreed encoding, or under that of its own training rows."""
        from ffalm.data.preprocessing import Preprocessing

        encoding = encoding or TableEncoding.of(self.summary(), self.long_tails)
        return Dataset(
            self.task,
            *map(self._examples, encoding.compact(self.features, self.parts), self.parts),
            owners=None if self.owner is None else [torch.from_numpy(self.owner[rows]) for rows in self.parts],
            owner_names=self.owner_names,
            notes=self.notes,
            preprocessing=replace(self.preprocessing or Preprocessing(), table=encoding),
        )

    def _examples(self, features: CompactFeatures, rows: NDArray[np.int64]) -> Examples:
        """Dense unless that would be large; a table of numbers alone is dense as it is."""
        coded = features.codes.shape[1] > 0
        dense = features.dense() if coded and features.nbytes <= compact_features.DENSE_BYTES else features
        x = dense if coded else features.numbers
        return Examples(x, torch.from_numpy(self.y[rows]), torch.from_numpy(self.group[rows]))


def is_numeric(column: pd.Series) -> bool:
    """Whether a column is standardised; booleans are categories."""
    dtype = column.dtype
    return bool(pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype))


def numbers(column: pd.Series, remedy: str = "fill them in or drop the column") -> NDArray[np.float64]:
    """The values of a numeric column; a `UserError` unless all are finite, which says what to do about the others."""
    column = inferred(column)
    if not is_numeric(column) and not column.isna().all():
        message = f"The column {str(column.name)!r} must hold numbers only, such as 0.73; it holds text"
        marked = decimal_mark(distinct(column)[1])
        hint = ""
        if marked is not None:
            hint = ", such as {!r}: set decimal to {!r} (--decimal {}) for a text file, else convert it to numbers"
            hint = hint.format(*marked, marked[1])
        raise UserError(f"{message}{hint}.", f"{message}.")
    require_real(column)
    values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise UserError(
            f"The numeric column {str(column.name)!r} has {len(bad)} missing or infinite "
            f"value{'s' * (len(bad) > 1)}, first in data row {bad[0] + 1}: {remedy}.",
            f"Its numeric column {str(column.name)!r} has missing or infinite values.",
        )
    return values


def require_real(column: pd.Series) -> None:
    """Refuse complex numbers, of which a conversion would leave the real part."""
    if pd.api.types.is_complex_dtype(column.dtype):
        raise PublicError(f"The column {str(column.name)!r} holds complex numbers: give real ones.")


def _summarise(column: pd.Series, gaps: bool) -> ColumnSummary:
    if is_numeric(column):
        values = numbers(column.dropna() if gaps else column)
        with np.errstate(over="ignore"):  # an overflow is reported when the encoding is made
            total, squares = float(values.sum()), float(np.square(values).sum())
        roots = root_squares = math.inf
        if bool((values >= 0).all()):
            half = np.sqrt(values)
            roots, root_squares = float(np.sqrt(half).sum()), float(half.sum())
        missing = len(column) - len(values)
        return NumericSummary(
            len(values), total, squares, roots, root_squares, missing, _small_deviations(values, total, squares)
        )
    codes, texts = distinct(column)
    tally = np.bincount(codes + 1, minlength=len(texts) + 1).tolist()
    counts = zip([None, *texts], tally, strict=True)
    return CategorySummary({category: count for category, count in counts if count})


def _small_deviations(values: NDArray[np.float64], total: float, squares: float) -> float | None:
    """The sum of squared deviations from the mean, by two passes over the rows; None if `squares` is enough."""
    if not len(values) or not 0 < squares < math.inf or squares - total / len(values) * total >= CANCELLED * squares:
        return None
    apart = values - values[0]  # exactly 0 for a constant
    return float(np.square(apart - apart.mean()).sum())


def _column(name: str, summary: ColumnSummary, long_tails: bool) -> NumericColumn | CategoryColumn:
    if isinstance(summary, CategorySummary):
        present = sorted(category for category in summary.counts if category is not None)
        missing = [None] if None in summary.counts else []
        return CategoryColumn(name, (*present, *missing))
    require(summary.count > 0, f"The column {name!r} has no training rows to take a mean of.")
    summary = summary.filled()
    require(math.isfinite(summary.squares), f"The values of the column {name!r} are too large to be standardised.")
    mean, scale = _moments(summary.count, summary.total, summary.squares, summary.deviations)
    root = None
    if long_tails and math.isfinite(summary.roots) and scale > _LONG_TAIL * mean:
        root = _moments(summary.count, summary.roots, summary.root_squares)
    return NumericColumn(name, mean, scale, root if root is not None and root[1] > 0 else None)


def _moments(count: int, total: float, squares: float, deviations: float | None = None) -> tuple[float, float]:
    """Mean and standard deviation by sums; the latter is 0 if it is rounding error."""
    mean, square = total / count, squares / count
    if deviations is not None:
        return mean, math.sqrt(deviations / count) if deviations / count > _LAST_BITS * square else 0.0
    variance = square - mean * mean
    return mean, math.sqrt(variance) if variance > ROUNDING * square else 0.0


def _standardised(values: pd.Series, column: NumericColumn) -> NDArray[np.float64]:
    """The feature of a column, if it is finite; also of a constant one, whose numbers must be there all the same."""
    with np.errstate(over="ignore"):
        scaled = column.standardised(numbers(values, FILL_OR_LEAVE_OUT))  # the column itself is needed
    if not bool((np.abs(scaled) <= FARTHEST).all()):
        raise PublicError(f"The column {column.name!r} has values too far from those of training rows.")
    return scaled


def _column_of(fields: Any) -> NumericColumn | CategoryColumn:
    """A column as `to_json` wrote it; what is not one raises a TypeError, LookupError or ValueError."""
    if not isinstance(fields, dict) or not isinstance(fields["name"], str):
        raise TypeError
    if "categories" not in fields:
        root = fields.get("root")
        root = None if root is None else (float(root[0]), float(root[1]))
        return NumericColumn(fields["name"], float(fields["mean"]), float(fields["scale"]), root)
    categories = fields["categories"]
    if not isinstance(categories, list) or not all(isinstance(one, str | None) for one in categories):
        raise TypeError
    return CategoryColumn(fields["name"], tuple(categories))


def _parsed(text: str, what: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError:
        raise UserError(f"This {what} is not valid JSON: restore the file.") from None
