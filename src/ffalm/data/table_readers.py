"""Text and Parquet files as data frames: whole, or in pieces where the whole would take much of the free memory."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from ffalm.data.table_codes import spell_codes
from ffalm.data.table_pieces import column_room, frame_of, has_words_for_missing, joined, stored_column
from ffalm.data.table_values import column_name
from ffalm.errors import require, short_repr
from ffalm.system.memory import free

_PIECE_VALUES = 2**22  # values of all columns that are read at a time
_WHOLE = 0.25  # share of the free memory that a table may take to be read whole
_DECODED = 5  # bytes that a table takes as it is read, for each byte of text
_UNPACKED = 5  # times a compressed file
_BLOCK = 2**24  # bytes that are searched for line feeds at a time
_LINES = 20  # from which the separator is detected
_VALUE = 16  # bytes of a value of a Parquet file, as it is read

Encoding = str | None


def check_encoding(encoding: Encoding) -> None:
    """Refuse a name that is not a text encoding."""
    try:
        known = encoding is None or codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):
        known = False
    require(
        known, f"The encoding {short_repr(encoding)} is not known: give one such as utf-8, latin-1, cp1252 or utf-16."
    )


def read_text(
    path: Path,
    separator: str | None,
    decimal: Literal[".", ","],
    encoding: Encoding,
    usual: str,
    texts: Collection[str] | Literal["all"] = (),
    codes: Collection[str] = (),
) -> pd.DataFrame:
    """The table with its header as written; pandas would rename repeated and empty names.

    `usual` is the separator unless the first lines show another. Columns named in `texts` stay text; with "all", all
    do, and no value counts as missing. Those named in `codes` hold categories, whose cells are read one by one.

    Some programs declare the separator in a line such as `sep=;` before the header.
    """
    header, options = text_layout(path, separator, decimal, encoding, usual)
    size = path.stat().st_size * _DECODED * (_UNPACKED if path.name.lower().endswith(".gz") else 1)
    if texts != "all":
        texts = {column_name(name) for name in texts}
    codes = {column_name(name) for name in codes}
    as_text = {place: str for place, name in enumerate(header) if column_name(name) in texts}
    options |= {"dtype": str, "na_filter": False} if texts == "all" else {"dtype": as_text, "low_memory": False}

    def whole(place: int) -> pd.Series:
        column = pd.read_csv(path, usecols=[place], **options).iloc[:, 0]
        if not has_words_for_missing(column):
            return column
        return pd.read_csv(path, usecols=[place], **{**options, "dtype": str}).iloc[:, 0]

    if not _large(size):
        frame = _named(pd.read_csv(path, **options), header)
        for place in range(len(header)):
            if has_words_for_missing(frame.iloc[:, place]):
                frame.isetitem(place, whole(place))
    else:
        with pd.read_csv(path, chunksize=max(1, _PIECE_VALUES // len(header)), **options) as reader:
            frame = joined((_named(piece, header) for piece in reader), whole, size)
    if _line_feeds(path) > len(frame) + 1 + options["skiprows"]:  # else no cell holds any
        _require_closed_quotes(path, options["sep"], options["encoding"])
    coded = [place for place, name in enumerate(header) if column_name(name) in codes]
    if coded:
        rows = max(1, _PIECE_VALUES // 8 // len(coded))  # texts take more room than numbers
        as_texts = {**options, "dtype": str, "chunksize": rows}
        spell_codes(frame, coded, decimal, lambda places: pd.read_csv(path, usecols=list(places), **as_texts))
    return frame


def read_parquet(path: Path) -> pd.DataFrame:
    """The table; exact decimals become floats, because pandas would read them as objects."""
    from pyarrow.parquet import ParquetFile, read_table

    with ParquetFile(path) as file:
        rows, width, schema = file.metadata.num_rows, file.metadata.num_columns, file.schema_arrow
    if not _large(rows * width * _VALUE) or len({*schema.names}) < len(schema.names):
        return _frame(read_table(path))
    names = list(_frame(schema.empty_table()).columns)

    def columns() -> Iterator[pd.Series]:
        room = column_room(rows, len(names))
        for place, name in enumerate(map(str, names)):
            yield stored_column(_frame(read_table(path, columns=[name]).select([name])).iloc[:, 0], room[place])

    return frame_of(names, columns())


def text_layout(
    path: Path, separator: str | None, decimal: Literal[".", ","], encoding: Encoding, usual: str
) -> tuple[list[str], dict[str, Any]]:
    """The first row of a text file, which names its columns, and how pandas has to read the file."""
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # with or without a byte order mark
    lines = _first_lines(path, encoding)
    declared = re.fullmatch(r"sep=(.)", lines[0])
    options: dict[str, Any] = {
        "sep": separator or (declared.group(1) if declared else _separator(lines, usual)),
        "skipinitialspace": True,
        "decimal": decimal,
        "skiprows": int(declared is not None),
        "encoding": encoding,
    }
    return pd.read_csv(path, header=None, nrows=1, dtype=str, na_filter=False, **options).iloc[0].tolist(), options


def _require_closed_quotes(path: Path, separator: str, encoding: Encoding) -> None:
    """Refuse a file in which a quotation mark ends within a cell: one is missing before, and the rows between were read
    as one text."""
    longest = csv.field_size_limit(sys.maxsize)
    try:
        with open_file(path)(path, "rt", encoding=encoding, newline="") as file:
            rows, before = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True), 0
            while True:
                try:
                    if next(rows, None) is None:
                        return
                except csv.Error:
                    if rows.line_num > before + 1:  # within one line no row is lost
                        raise ValueError(
                            f"a quotation mark in line {rows.line_num} ends within a cell that begins in line "
                            f"{before + 1}, so one is missing"
                        ) from None
                before = rows.line_num
    finally:
        csv.field_size_limit(longest)


def _line_feeds(path: Path) -> int:
    with open_file(path)(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def open_file(path: Path) -> Callable[..., Any]:
    """The function that opens a file, which may be compressed."""
    return gzip.open if path.name.lower().endswith(".gz") else open


def _large(size: int) -> bool:
    """Whether reading so many bytes at once would take much of the free memory."""
    left = free(torch.device("cpu"))
    return left is not None and size > left * _WHOLE


def _named(frame: pd.DataFrame, header: list[str]) -> pd.DataFrame:
    if not isinstance(frame.index, pd.RangeIndex) or frame.shape[1] != len(header):
        raise ValueError("its rows have more fields than its first line, which must hold the names of columns")
    frame.columns = header
    return frame


def _first_lines(path: Path, encoding: Encoding) -> list[str]:
    """The first lines that are not empty; bytes that cannot be decoded are reported when the table is read."""
    with open_file(path)(path, "rt", encoding=encoding, errors="replace") as file:
        return list(islice((line.rstrip("\n") for line in file if line.strip()), _LINES)) or [""]


def _separator(lines: list[str], usual: str) -> str:
    """The separator: the usual one, or another one if the header contains only that.

    If the header contains several, for example a comma in a name, it is the one that makes most columns of the header,
    and as many of each row.
    """
    ends = [place for place in range(1, len(lines)) if "\n".join(lines[:place]).count('"') % 2 == 0]
    first = ends[0] if ends else 1  # names in quotation marks may have several lines
    header, *rows = (re.sub(r'"[^"]*"', "", line) for line in ("\n".join(lines[:first]), *lines[first:]))
    counts = {sign: header.count(sign) for sign in (",", ";", "\t", "|") if sign in header}
    if len(counts) > 1:
        alike = {sign: count for sign, count in counts.items() if all(row.count(sign) == count for row in rows)}
        most = [sign for sign, count in alike.items() if rows and count == max(alike.values())]
        return most[0] if len(most) == 1 else usual
    return next(iter(counts), usual)


def _frame(table: Any) -> pd.DataFrame:
    import pyarrow

    for place, column in enumerate(table.schema):
        if pyarrow.types.is_decimal(column.type):
            table = table.set_column(place, column.name, table.column(place).cast(pyarrow.float64()))
    try:
        table.validate(full=True)  # else text that is not UTF-8 would raise later, when it is used
        return table.to_pandas().reset_index(drop=True)
    except pyarrow.ArrowException as error:  # most are a ValueError too, but not all
        raise ValueError(str(error)) from None
