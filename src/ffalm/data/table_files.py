"""Reading tables: CSV, TSV and Parquet files, and data frames, with the same checks of their columns."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ffalm.arrays import inferred
from ffalm.data import PARQUET, SEPARATORS, is_table
from ffalm.data.encoding import is_numeric
from ffalm.data.table_pieces import one_below_the_other
from ffalm.data.table_readers import check_encoding, read_parquet, read_text
from ffalm.data.table_values import column_name, listed
from ffalm.errors import UserError, require
from ffalm.system.files import reason

#: The column that says which of several files a row is from.
FILE_COLUMN = "(file)"
_TWICE = "Its data file has two columns of the same name."


def read_table(
    file: str,
    separator: str | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: str | None = None,
    texts: Collection[str] | Literal["all"] = (),
    codes: Collection[str] = (),
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns of a file, with stripped names, and notes on columns that were left out.

    Of a text file, the columns named in `texts` are read as text whatever they hold; with "all", every value is as it
    is written, such as 007. Those named in `codes` are read cell by cell, as `table_codes` says.
    """
    path = require_file(file)
    check_encoding(encoding)
    separator = "\t" if separator == r"\t" else separator  # as people write a tab on a command line
    require(separator is None or len(separator) == 1, f"The separator must be one character; got {separator!r}.")
    ending = next((ending for ending in (*SEPARATORS, *PARQUET) if path.name.lower().endswith(ending)), None)
    if ending is None:
        known = ", ".join((*SEPARATORS, *PARQUET))
        raise UserError(
            f"{file!r} has no known ending: use {known}.", f"Its data file has none of the endings {known}."
        )
    try:
        before = _version(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more fields than the header
            if ending in PARQUET:
                frame = read_parquet(path)
            else:
                frame = read_text(path, separator, decimal, encoding, SEPARATORS[ending], texts, codes)
        if _version(path) != before:  # it is read more than once, and may have been half-written
            raise OSError("it was changed while it was read")
    except UnicodeDecodeError as error:
        kind = "UTF-8" if encoding is None else encoding
        raise UserError(
            f"{file!r} is not {kind} text (byte {error.start}): set encoding (--encoding) to the file's own, such as "
            "latin-1, cp1252 or utf-16, or save it as UTF-8.",
            "Its data file is not UTF-8 text, or not of the encoding that its site.toml names.",
        ) from None
    except pd.errors.EmptyDataError:
        raise UserError(f"{file!r} is empty.", "Its data file is empty.") from None
    except (ValueError, OSError, EOFError, zlib.error, ArithmeticError, Warning) as error:
        why = (str(error).splitlines() or ["?"])[0].removeprefix("Error tokenizing data. C error: ").strip()
        unreadable = "Its data file cannot be read as a table."
        raise UserError(f"{file!r} cannot be read as a table: {why.rstrip('.')}.", unreadable) from None
    return checked_columns(frame, file)


def _version(path: Path) -> tuple[int, ...]:
    """What changes when a file is written."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def files_of(file: str) -> tuple[str, ...]:
    """The files of a table: one, or a comma-separated list with one per data owner."""
    parts = tuple(part.strip() for part in file.split(","))
    return parts if len(parts) > 1 and all(map(is_table, parts)) and not os.path.exists(file) else (file,)


def read_tables(
    file: str,
    separator: str | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: str | None = None,
    codes: Collection[str] = (),
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """As `read_table`; rows of several files are concatenated, with their file in the column `FILE_COLUMN`.

    A column that holds numbers in one file and text in another is text in all, as in one file of all rows: 01 is then
    the same category everywhere.
    """
    files = files_of(file)
    if len(files) == 1:
        return read_table(file, separator, decimal, encoding, codes=codes)
    read = [read_table(one, separator, decimal, encoding, codes=codes) for one in files]
    first = read[0][0].columns
    for name, (frame, _) in zip(files, read, strict=True):
        apart = sorted({*first} ^ {*frame.columns})
        require(not apart, f"The columns of {files[0]!r} and {name!r} differ in {listed(apart)}: make them alike.")
    require(
        FILE_COLUMN not in first, f"Several files may not have a column {FILE_COLUMN!r}, which says whose a row is."
    )
    short = [Path(name).name.split(".")[0] for name in files]
    owners = short if len({*short}) == len(short) else files
    once = len({*owners}) == len({os.path.realpath(name) for name in files}) == len(files)
    require(once, f"A file is named twice in {file!r}: name it once.")
    mixed = [name for name in first if len({_written(frame[name]) for frame, _ in read} - {"nothing"}) > 1]
    if mixed:
        read = [read_table(one, separator, decimal, encoding, mixed, codes) for one in files]
    frames = [frame.assign(**{FILE_COLUMN: owner}) for owner, (frame, _) in zip(owners, read, strict=True)]
    notes = dict.fromkeys(note for _, own in read for note in own)
    return one_below_the_other(frames), tuple(notes)


def _written(column: pd.Series) -> Literal["nothing", "numbers", "truth values", "text"]:
    """What the cells of a column hold."""
    if column.isna().all():
        return "nothing"
    if is_numeric(column):
        return "numbers"
    return "truth values" if pd.api.types.infer_dtype(column, skipna=True) == "boolean" else "text"


def require_columns(file: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that do not say which columns are the label and the group, with the columns to choose from."""
    missing = [role for role in ("label", "group") if role not in settings]
    separator, decimal = settings.get("separator"), settings.get("decimal", ".")
    encoding = settings.get("encoding")
    usable = all(value is None or isinstance(value, str) for value in (separator, encoding)) and decimal in (".", ",")
    frame, _ = read_tables(file, separator, decimal, encoding) if usable else read_tables(file)
    require(
        not missing,
        f"Say which column of {file!r} is the {' and which the '.join(missing)}: its columns are "
        f"{listed([str(name) for name in frame.columns], most=30)}.",
    )


def checked_columns(frame: pd.DataFrame, file: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns with stripped names, and notes on columns that were left out; an unusable table is refused."""
    frame = frame.copy(deep=False)
    frame.columns = [column_name(name) for name in frame.columns]
    unnamed = [place for place, name in enumerate(frame.columns) if not name]
    notes = [f"A column without a name was left out of {Path(file).name}."] if unnamed else []
    frame = frame.iloc[:, [place for place in range(frame.shape[1]) if place not in unnamed]]
    frame, copied = without_copies(frame)
    notes += [
        f"{Path(file).name} holds the column {name!r} twice, with the same values: one of them is used."
        for name in copied
    ]
    twice = sorted({*frame.columns[frame.columns.duplicated()]})
    require(
        not twice,
        f"{file!r} has more than one column named {listed(twice)}: rename these columns or leave them out.",
        _TWICE,
    )
    require(len(frame) > 0, f"{file!r} has a header but no rows.", "Its data file has no rows.")
    require(
        frame.shape[1] > 1,
        f"{file!r} has only one column, {frame.columns[0] if frame.shape[1] else ''!r}: "
        "set `separator` if its columns are not separated by commas, or remove the lines above the names of columns.",
        "Its data file has only one column: `separator` in its site.toml may be wrong.",
    )
    return frame, tuple(notes)


def without_copies(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without columns that repeat the name and all values of an earlier one, and their names."""
    names, copies = list(frame.columns), list[int]()
    for place in np.flatnonzero(frame.columns.duplicated()):
        if frame.iloc[:, place].equals(frame.iloc[:, names.index(names[place])]):
            copies.append(int(place))
    kept = [place for place in range(len(names)) if place not in copies]
    return (frame.iloc[:, kept] if copies else frame), [names[place] for place in copies]


def as_frame(values: Any) -> pd.DataFrame | None:
    """A data frame of pandas, or of anything that becomes one (pyarrow, polars); None if it is not a table."""
    if not isinstance(values, pd.DataFrame) and not isinstance(values, type) and hasattr(values, "to_pandas"):
        try:
            values = values.to_pandas()
        except (ValueError, TypeError, NotImplementedError) as error:  # such as a dictionary with a value twice
            raise UserError(f"The table cannot be converted to a pandas data frame: {error}.") from None
    if not isinstance(values, pd.DataFrame):
        return None
    frame = values.reset_index(drop=True)
    frame.columns = [column_name(name) for name in frame.columns]
    for place in range(frame.shape[1]):
        frame.isetitem(place, _plain_column(frame.iloc[:, place]))
    return frame


def _plain_column(column: pd.Series) -> pd.Series:
    """The column in a type that every function of pandas takes: numbers that are objects or big-endian, decimals."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "V":  # structured records, from which pandas cannot select rows
            return column.astype(object)
        if not dtype.isnative:
            return column.astype(dtype.newbyteorder("="))
        return inferred(column)
    if isinstance(dtype, pd.ArrowDtype):
        import pyarrow.types

        if pyarrow.types.is_decimal(dtype.pyarrow_dtype):
            return column.astype(pd.ArrowDtype(pyarrow.float64()))
        if not _known_to_pandas(dtype):
            return pd.Series(pyarrow.array(column.array).to_pylist(), name=column.name)
        if pyarrow.types.is_nested(dtype.pyarrow_dtype):
            return column.astype(object)
    return column


def _known_to_pandas(dtype: pd.ArrowDtype) -> bool:
    """Whether pandas knows what an Arrow type holds; it does not for views and run-length encodings."""
    try:
        return dtype.type is not None
    except NotImplementedError:  # pandas raises it for these types
        return False


def require_file(file: str) -> Path:
    """The path of a file that is there; a `UserError` for anything else."""
    try:
        path = Path(file)
        path = path if path.exists() else path.expanduser()
        exists, folder, usable = path.exists(), path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        unusable = "The name of its data file cannot be used."
        raise UserError(f"The file {file!r} cannot be read: {reason(error)}.", unusable) from None
    require(exists, f"There is no file {file!r}: check the path.", "Its data file does not exist.")
    require(not folder, f"{file!r} is a folder: name the file in it.", "Its data file is a folder.")
    require(usable, f"{file!r} is a device or a pipe: name a file.", "Its data file is a device or a pipe.")
    return path
