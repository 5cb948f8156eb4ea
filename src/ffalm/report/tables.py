"""The one table type of this package; `rendering` writes it to terminal, Markdown, LaTeX, CSV and HTML.

A `Table` holds plain values; its columns say how a value is written. A value that is NaN is written "undefined", a
text in a numeric column (such as "diverged") is shown as it is, and None leaves the cell empty.

    table = Table("Sites", [Column("Site"), Column("DPD", "percent")], [Section([row("north", 0.125)])])
    print(to_markdown(table))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

Value = str | float | None
Interval = tuple[float, float]

#: Text; a whole number; any number, to `decimals` + 1 digits; a fraction in percent; a difference of fractions in
#: percentage points with its sign; a share as a whole percentage.
Kind = Literal["text", "count", "number", "ratio", "percent", "points", "share"]

#: Decimals of a percentage in the paper's tables; means that print alike are a tie.
DECIMALS = 2

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Cell:
    """A value, with its spread over seeds or its interval beside it."""

    value: Value = None
    spread: float | None = None  # standard deviation, or half the width of an interval; NaN of a single value
    interval: Interval | None = None
    bold: bool = False  # the best of its column, or a clear change
    verdict: str = ""  # on the page, a word below the numbers: "better", "worse", "not clear"
    before: float | None = None  # of a pair: the value that this one replaces, with its interval
    before_interval: Interval | None = None


@dataclass(frozen=True)
class Column:
    """A heading, and the format of the values below it."""

    head: str
    kind: Kind = "text"
    decimals: int = DECIMALS
    over: str = ""  # a heading above this one, shared with the neighbours that have the same
    graphic: Literal["", "bar", "interval", "pair"] = ""  # what the page draws next to the number
    reach: float = 1.0  # the value at the end of the drawing

    def text(self, cell: Cell) -> str:
        """The value alone."""
        value = cell.value
        if value is None or isinstance(value, str):
            return value or ""
        if not math.isfinite(value):
            return "undefined"
        if self.kind in ("percent", "points"):
            return (percent if self.kind == "percent" else signed)(value, self.decimals)
        digits = min(len(f"{abs(value):.0f}"), 15)  # of the whole part, so that 1234 is not written 1.2e+03
        return {
            "count": f"{value:,.0f}",
            "number": f"{value:.{max(self.decimals + 1, digits)}g}",
            "ratio": f"{value:.{self.decimals}f}",
            "share": f"{100 * value:.0f} %",
        }.get(self.kind, str(value))

    def aside(self, cell: Cell) -> str:
        """The text next to the value: its spread, its interval or nothing."""
        if cell.spread is not None and math.isfinite(cell.spread):
            return f"± {percent(cell.spread, self.decimals)}"
        if cell.interval is not None:
            return f"[{self.text(Cell(cell.interval[0]))}, {self.text(Cell(cell.interval[1]))}]"
        return ""

    def earlier(self, cell: Cell) -> str:
        """Of a pair, the value that this one replaces."""
        return self.text(Cell(cell.before))

    @property
    def heads(self) -> str:
        """The heading together with the one above it."""
        return f"{self.over} {self.head}".strip()

    @property
    def numeric(self) -> bool:
        """Whether the column is aligned to the right."""
        return self.kind != "text"


@dataclass(frozen=True)
class Row:
    """The cells of one row, and a note on it."""

    cells: Sequence[Cell]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Rows under a heading of their own."""

    rows: Sequence[Row]
    heading: str = ""
    key: str = ""  # the heading as a value of the column `Table.key`


@dataclass(frozen=True)
class Table:
    """A table, complete but for its markup."""

    title: str
    columns: Sequence[Column]
    sections: Sequence[Section]
    caption: str = ""  # how to read the cells
    notes: Sequence[str] = ()
    names: int = 1  # leading columns that name a row; of several, the first is shown once for rows that share it
    key: str = ""  # where set, Markdown and terminal show the sections' keys in a column with this heading
    style: str = field(default="", compare=False)  # the table's class on the page

    @property
    def heading(self) -> str:
        """Title and caption in one sentence."""
        if self.title and self.caption:
            return f"{self.title}: {self.caption}"
        return self.title or self.caption[:1].upper() + self.caption[1:]

    @property
    def rows(self) -> list[Row]:
        """The rows of all sections."""
        return [one for section in self.sections for one in section.rows]

    @property
    def noted(self) -> bool:
        """Whether some row has a note."""
        return any(one.note for one in self.rows)

    @property
    def wide(self) -> bool:
        """Whether a narrow screen shows each row as a list of its cells."""
        broad = self.names > 1 or any(column.graphic in ("interval", "pair") for column in self.columns)
        broad |= any(cell.interval is not None for row in self.rows for cell in row.cells)
        return len(self.columns) > (3 if broad else 4)

    @property
    def classes(self) -> str:
        """The table's classes on the page; rows that share a name cannot be sorted."""
        sortable = len(self.rows) > 1 and self.names == 1 and all(column.head for column in self.columns)
        return " ".join(filter(None, [self.style, "wide" * self.wide, "sortable" * sortable]))

    def spans(self, section: Section) -> list[int]:
        """For each row of a section how many rows its first cell stands for; 0 where it repeats the one above."""
        if self.names < 2:
            return [1] * len(section.rows)
        counts = [len(list(same)) for _, same in groupby(section.rows, key=lambda one: one.cells[0].value)]
        return [span for count in counts for span in (count, *[0] * (count - 1))]

    def shown(self, section: Section) -> Iterator[tuple[Row, list[tuple[Column, Cell]]]]:
        """The rows with their columns and cells, repeated names left empty."""
        for one, span in zip(section.rows, self.spans(section), strict=True):
            cells = [*one.cells] if span else [Cell(), *one.cells[1:]]
            yield one, list(zip(self.columns, cells, strict=True))

    def records(self) -> list[dict[str, Value]]:
        """The rows as plain values by heading, for machines."""
        return [
            {column.heads: plain(cell.value) for column, cell in zip(self.columns, one.cells, strict=True)}
            for one in self.rows
        ]


def row(*values: Any, note: str = "") -> Row:
    """A row from plain values and cells."""
    return Row([value if isinstance(value, Cell) else Cell(value) for value in values], note)


def plain(value: Value) -> Value:
    """A value for machines; None if there is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(value: float, decimals: int = DECIMALS) -> str:
    """A fraction in percent, never as minus zero."""
    return f"{round(100 * value, decimals) + 0.0:.{decimals}f}"


def signed(value: float, decimals: int = DECIMALS) -> str:
    """A difference in percentage points with its sign."""
    text = percent(value, decimals)
    return text.replace("-", MINUS) if text.startswith("-") else f"+{text}" if float(text) else text


def best(values: Sequence[float], higher: bool, excluded: Sequence[bool] = ()) -> list[bool]:
    """Which fractions are the best of their column as printed; a single row is compared with nothing.

    Excluded rows never are, since a model that predicts one label for everybody has small gaps and is useless.
    """
    out = list(excluded) or [False] * len(values)
    printed = [round(100 * value, DECIMALS) for value in values]
    known = [value for value, skip in zip(printed, out, strict=True) if math.isfinite(value) and not skip]
    if len(values) < 2 or not known:
        return [False] * len(values)
    top = max(known) if higher else min(known)
    return [value == top and not skip for value, skip in zip(printed, out, strict=True)]
