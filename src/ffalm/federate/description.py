"""A site's description of its data before anything is agreed: names, kinds, counts and sums, never a row.

First it has names and kinds of columns; statistics follow only for the columns that the federation uses.
A value (of the label, of the group, of a text column) is named only if enough of the site's rows hold it.
"""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ffalm.data.encoding import CANCELLED, NumericSummary, TableSummary
from ffalm.data.table_columns import MOST_CATEGORIES
from ffalm.errors import UserError
from ffalm.settings import build
from ffalm.system.files import parsed_json

ColumnKind = Literal["numbers", "text"]

MOST_ROWS = 2**40  # of a site, so that sums over sites stay exact
_MOST_NAMES, _LONGEST_NAME = 100_000, 10_000  # sites' names are compared with each other, and shown


@dataclass(frozen=True)
class Description:
    """A site's values of label and group in natural order, and its feature columns or the size of its images."""

    source: str
    labels: tuple[str, ...]
    groups: tuple[str, ...]
    kinds: dict[str, ColumnKind] | None = None  # of a table's feature columns
    columns: TableSummary | None = None  # of the columns that were asked for
    size: int | None = None
    ungrouped: bool = False  # whether the group of some rows is missing or, if crossed, too rare

    def after(self, earlier: Description | None) -> Description:
        """This description, with the kinds of columns from an earlier one."""
        if earlier is None or earlier.kinds is None or self.kinds is None:
            return self
        return replace(self, kinds={**earlier.kinds, **self.kinds})

    def to_json(self) -> str:
        """As text for the wire."""
        return json.dumps({**asdict(self), "columns": None if self.columns is None else self.columns.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Description:
        """The inverse of `to_json`; a malformed description is refused, since sites may run other versions."""
        try:
            values = parsed_json(text)
            columns = None if values["columns"] is None else _checked(TableSummary.from_json(values["columns"]))
            told = build(cls, {**values, "columns": columns}, "description")
            names = (*told.labels, *told.groups, *(told.kinds or ()))
            if max(len(told.labels), len(told.groups)) > MOST_CATEGORIES or len(names) > _MOST_NAMES:
                raise ValueError("it names too many labels, groups or columns")
            if not all(name.isprintable() and len(name) <= _LONGEST_NAME for name in names):
                raise ValueError("a name has control characters, or is too long")
            return told
        except (UserError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"The site's description of its file cannot be read ({error}).") from None


def _checked(summary: TableSummary) -> TableSummary:
    """The summary, if its sums are numbers and its categories names; raises `ValueError` otherwise."""
    for name, column in summary.columns.items():
        if isinstance(column, NumericSummary):
            right = _possible(column)
        else:
            named = all(category is None or isinstance(category, str) for category in column.counts)
            texts = "".join(category for category in column.counts if category is not None) if named else ""
            if any(unicodedata.category(letter) == "Cc" for letter in texts):  # it could steer a terminal
                raise ValueError(f"a category of the column {name!r} has control characters")
            if named and any(len(category or "") > _LONGEST_NAME for category in column.counts):
                raise ValueError(f"a category of the column {name!r} is too long")
            few = len(column.counts) <= MOST_CATEGORIES + 1  # and those that are missing
            right = named and few and all(_count(count) for count in column.counts.values())
        if not right:
            raise ValueError(f"the description of the column {name!r} is invalid")
    return summary


def _possible(column: NumericSummary) -> bool:
    """Whether some numbers have these sums: (sum x)^2 <= n sum x^2, up to rounding; infinite sums are refused later."""
    sums = column.total, column.squares, column.roots, column.root_squares
    told = (*sums, 0.0 if column.deviations is None else column.deviations)
    if not _count(column.count) or not _count(column.missing) or not all(type(value) in (int, float) for value in told):
        return False
    if column.deviations is not None and not 0 <= column.deviations <= 2 * CANCELLED * column.squares:
        return False  # larger ones follow from the squares
    return all(
        squares >= 0 and total * total <= column.count * squares * (1 + 1e-6) + 1e-9
        for total, squares in (sums[:2], sums[2:])
        if math.isfinite(total) and math.isfinite(squares)
    )


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROWS
