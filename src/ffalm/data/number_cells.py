"""How a text file writes its numbers: codes such as 00501 and thousands such as 1.169, which are read as 501 and 1.169.

Once a column is read, its values no longer tell. Parquet files and data frames say themselves what is a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ffalm.data import SEPARATORS
from ffalm.data.encoding import is_numeric
from ffalm.data.table_files import files_of, require_file
from ffalm.data.table_readers import open_file, text_layout
from ffalm.data.table_values import column_name
from ffalm.data.written_numbers import Decimal

_SEARCHED = 2**24  # bytes of a file, of which zeros before numbers are searched
_PIECE_VALUES = 2**19  # cells that are read as text at a time
_FEWEST = 10  # different numbers with a mark before three digits: fewer may have three decimals by chance
_FIRST = 1000  # rows that spare a look at the others
_CLOSER = 30  # times that new numbers are closer together than those of training rows
_PADDED = re.compile(r"0[0-9]+")
_BARE = re.compile(r"[+-]?[0-9]{1,3}")


Columns = Mapping[str, pd.Series]


def written_strangely(
    file: str, columns: Columns, separator: str | None, decimal: Decimal, encoding: str | None
) -> dict[str, str]:
    """What to say of columns of numbers, read from these files, whose cells show that they are something else."""
    whole = [name for name in columns if is_numeric(columns[name]) and _whole(columns[name].iloc[:_FIRST])]
    found: dict[str, str] = {}
    for path, places, options in _text_files(file, separator, decimal, encoding):
        found = {**_padded(path, {at: name for at, name in places.items() if name in whole}, options), **found}
    return {**found, **written_as_thousands(file, columns, separator, decimal, encoding)}


def written_as_thousands(
    file: str,
    columns: Columns,
    separator: str | None,
    decimal: Decimal,
    encoding: str | None,
    spreads: Mapping[str, float] | None = None,
) -> dict[str, str]:
    """The same for numbers such as 1.169 beside 426, which may be 1169 and 426.

    `spreads` are the standard deviations of training rows; where one is far above that of new rows, 45.000 is suspected
    without a number below 1000 beside it.
    """
    doubtful = {name: columns[name] for name in columns if is_numeric(columns[name])}
    doubtful = {name: column for name, column in doubtful.items() if _may_be_thousands(column)}
    closer = {name for name in doubtful if (spreads or {}).get(name, 0) > _CLOSER * float(doubtful[name].std())}
    found: dict[str, str] = {}
    for path, places, options in _text_files(file, separator, decimal, encoding) if doubtful else ():
        chosen = {at: name for at, name in places.items() if name in doubtful}
        found = {**_thousands(path, chosen, options, closer), **found}
    return found


def _text_files(
    file: str, separator: str | None, decimal: Decimal, encoding: str | None
) -> Iterator[tuple[Path, dict[int, str], dict[str, Any]]]:
    """Those of the files that are text, with the names of their columns by place, and how pandas reads them."""
    for one in files_of(file):
        path = require_file(one)
        usual = next((sign for ending, sign in SEPARATORS.items() if path.name.lower().endswith(ending)), None)
        if usual is not None:
            sign = "\t" if separator == r"\t" else separator
            header, options = text_layout(path, sign, decimal, encoding, usual)
            yield path, {place: column_name(name) for place, name in enumerate(header)}, options


def _whole(column: pd.Series) -> bool:
    """Whether all numbers are whole."""
    values = column.dropna().to_numpy(dtype=np.float64)
    return bool((values == np.round(values)).all())


def _padded(path: Path, places: Mapping[int, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Columns in which a whole number begins with 0; the beginning of a large file is enough for a note."""
    if not places:
        return {}
    with open_file(path)(path, "rb") as file:
        block = file.read(_SEARCHED)
    if not _may_be_padded(block, options["sep"], options["encoding"]):
        return {}
    found: dict[str, str] = {}
    for name, cells in _texts(path, places, {**options, "nrows": block.count(b"\n") + 1}):
        if name not in found and (example := next(filter(_PADDED.fullmatch, cells), "")):
            found[name] = (
                f"holds numbers with zeros before them, such as {example}, which are read as quantities "
                f"({example.lstrip('0') or 0}): list it in categorical if they are codes."
            )
    return found


def _may_be_padded(block: bytes, separator: str, encoding: str) -> bool:
    """Whether some cell may be such a number: reading all as text again takes longer."""
    if not "0,".encode(encoding).endswith(b"0,"):
        return True  # several bytes a letter, such as UTF-16
    ends = re.escape(separator.encode(encoding)[-1:]) + rb"\s\"'"
    return re.search(rb"0(?<=[" + ends + rb"]0)[0-9]+(?![^" + ends + rb"])", block) is not None


def _thousands(
    path: Path, places: Mapping[int, str], options: Mapping[str, Any], closer: Collection[str]
) -> dict[str, str]:
    """Columns in which every number is below 1000 and whole, or has the decimal mark before exactly three digits."""
    mark = "point" if options["decimal"] == "." else "comma"
    marked = re.compile(rf"[+-]?[1-9][0-9]{{0,2}}{re.escape(options['decimal'])}[0-9]{{3}}")
    examples: dict[str, str] = {}
    bare: dict[str, str] = {}
    others: set[str] = set()
    for name, cells in _texts(path, places, options) if places else ():
        for cell in cells:
            if marked.fullmatch(cell):
                examples.setdefault(name, cell)
            elif _BARE.fullmatch(cell):
                bare.setdefault(name, cell)
            else:
                others.add(name)
    found: dict[str, str] = {}
    for name, example in examples.items():
        if name not in others and (name in bare or name in closer):
            beside = f"and whole ones, such as {bare[name]}" if name in bare else "much closer than in training"
            found[name] = (
                f"holds numbers with a {mark} before three digits, such as {example}, {beside}: if these are "
                f"thousands, write them without it ({re.sub('[.,]', '', example)})."
            )
    return found


def _may_be_thousands(column: pd.Series) -> bool:
    """Whether the values are what such cells are read as."""
    if pd.api.types.is_integer_dtype(column.dtype) or not _as_thousands(column.iloc[:_FIRST]):
        return False
    values = column.dropna().to_numpy(dtype=np.float64)
    return _as_thousands(column) and len(np.unique(values[values != np.round(values)])) >= _FEWEST


def _as_thousands(column: pd.Series) -> bool:
    """Whether all numbers are below 1000 and whole, or above 1 with at most three decimals."""
    values = np.abs(column.dropna().to_numpy(dtype=np.float64))
    parts = values[values != np.round(values)]
    exact = np.abs(parts * 1000 - np.round(parts * 1000)) < 1e-6
    return bool((values < 1000).all() and (parts > 1).all() and exact.all())


def _texts(path: Path, places: Mapping[int, str], options: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The different cells of these columns, with the columns' names, piece by piece."""
    rows = max(1, _PIECE_VALUES // len(places))
    with pd.read_csv(path, usecols=[*places], chunksize=rows, **{**options, "dtype": str}) as pieces:
        for piece in pieces:
            for name, column in zip(places.values(), piece.columns, strict=True):
                yield name, [text.strip() for text in piece[column].dropna().unique()]
