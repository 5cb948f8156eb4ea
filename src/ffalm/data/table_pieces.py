"""Tables larger than memory: read piece by piece into columns in temporary files.

A column comes out with the values that reading the whole file gives. Text becomes a categorical column, whose values
are stored once. A column that holds different kinds in different pieces, such as numbers first and then text, is read
once more, alone and whole: only the whole column says what its values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas._libs.parsers import STR_NA_VALUES

from ffalm.data.encoding import is_numeric
from ffalm.system.spilled_arrays import new_array, release_pages, temporary_file

_EXACT = 2**53  # integers up to this one are exact as floats

Kind = Literal["whole numbers", "numbers", "text", "missing", "other"]
Whole = Callable[[int], pd.Series]
"""Reads one column, by its place, for all rows."""


@dataclass
class _Growing:
    """A column of which some pieces are read: where each lies in the temporary file."""

    pieces: list[tuple[Kind, int, int]] = field(default_factory=list)  # kind, first byte, rows
    texts: dict[str, int] = field(default_factory=dict)  # each text and its code, in order of appearance

    def add(self, piece: pd.Series, file: BinaryIO) -> None:
        """Append a piece: text as codes, and no values for a kind that only the whole column decides."""
        kind = _kind(piece)
        if kind == "text":
            codes, found = pd.factorize(piece)
            places = [self.texts.setdefault(text, len(self.texts)) if text else -1 for text in found]
            values: NDArray[Any] = np.array([*places, -1], dtype=np.int64)[codes]
        else:
            values = piece.to_numpy() if kind in ("whole numbers", "numbers") else np.empty(0)
        self.pieces.append((kind, file.tell(), len(piece)))
        values.tofile(file)

    def finished(self, file: BinaryIO, room: NDArray[np.uint8]) -> pd.Series | None:
        """The whole column in this room; None if it must be read again."""
        kinds = {kind for kind, _, _ in self.pieces}
        known = kinds - {"missing"}
        if known == {"text"}:
            codes = self._filled(file, _placed(room, _code_type(len(self.texts))), -1)
            return None if codes is None else _categories(codes, list(self.texts))
        if not known <= {"whole numbers", "numbers"}:
            return None
        values = self._filled(file, _placed(room, np.int64 if kinds == {"whole numbers"} else np.float64), np.nan)
        return None if values is None else pd.Series(values, copy=False)

    def _filled(self, file: BinaryIO, made: NDArray[Any], missing: float) -> NDArray[Any] | None:
        end = 0
        for kind, first, rows in self.pieces:
            if kind == "missing":
                made[end : end + rows] = missing
            else:
                file.seek(first)
                stored = np.fromfile(file, np.float64 if kind == "numbers" else np.int64, rows)
                inexact = kind == "whole numbers" and made.dtype == np.float64
                if inexact and max(-int(stored.min()), int(stored.max())) > _EXACT:
                    return None
                made[end : end + rows] = stored
            end += rows
        return made


def joined(pieces: Iterable[pd.DataFrame], whole: Whole, size: int) -> pd.DataFrame:
    """One table of all pieces; `size` is about how many bytes they hold."""
    columns: list[_Growing] = []
    names: list[Any] = []
    rows = 0
    made: dict[int, pd.Series | None] = {}
    with temporary_file(size) as file:
        for piece in pieces:
            names, rows = list(piece.columns), rows + len(piece)
            columns = columns or [_Growing() for _ in names]
            for place, column in enumerate(columns):
                column.add(piece.iloc[:, place], file)
        room = column_room(rows, len(names))
        for place, column in enumerate(columns):
            made[place] = column.finished(file, room[place])
            release_pages()
    each = (
        stored_column(whole(place), room[place]) if (own := made[place]) is None else own for place in range(len(names))
    )
    return frame_of(names, each)


def one_below_the_other(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of the same columns as one, put together column by column.

    `pd.concat` of whole tables converts booleans to numbers or not, depending on other columns.
    """
    rows, names = sum(map(len, frames)), list(frames[0].columns)
    columns = (pd.concat([frame[name].astype(object) if _kind(frame[name]) == "text" else frame[name]
                          for frame in frames], ignore_index=True) for name in names)  # fmt: skip
    return frame_of(names, map(stored_column, columns, column_room(rows, len(names))))


def column_room(rows: int, columns: int) -> NDArray[np.uint8]:
    """Room for so many columns of 8 bytes a row, in memory or in a temporary file."""
    return new_array((columns, 8 * rows), np.uint8)


def stored_column(column: pd.Series, room: NDArray[np.uint8]) -> pd.Series:
    """A whole column moved into its room; what is neither numbers nor text stays as it is."""
    if _kind(column) == "text":
        codes, texts = pd.factorize(column)
        placed = _placed(room, _code_type(len(texts)))
        placed[...] = codes
        return _categories(placed, texts)
    if not (isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb"):
        return column
    values = _placed(room, column.dtype.type)
    values[...] = column.to_numpy()
    release_pages()
    return pd.Series(values, copy=False)


def frame_of(names: Sequence[Any], columns: Iterable[pd.Series]) -> pd.DataFrame:
    """Columns side by side, without a copy; names may be repeated."""
    frame = pd.DataFrame(dict(enumerate(columns)), copy=False)
    frame.columns = list(names)
    return frame


def _placed(room: NDArray[np.uint8], dtype: type[np.generic]) -> NDArray[Any]:
    """The start of a column's room, for values of this type."""
    return room[: len(room) // 8 * np.dtype(dtype).itemsize].view(dtype)


def _code_type(count: int) -> type[np.generic]:
    """The type that pandas uses for the codes of so many categories."""
    return next(kind for kind in (np.int8, np.int16, np.int32) if count <= np.iinfo(kind).max)


def _categories(codes: NDArray[Any], texts: Any) -> pd.Series:
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(texts), validate=False), copy=False)


def _kind(column: pd.Series) -> Kind:
    """What a column holds, as far as pieces of the same kind can be put together."""
    if is_numeric(column):
        if column.dtype == np.int64:
            return "whole numbers"
        if column.dtype == np.float64:
            return "missing" if column.isna().all() else "numbers"
        return "other"
    text = pd.api.types.infer_dtype(column, skipna=True) == "string" and not has_words_for_missing(column)
    return "text" if text else "other"


def has_words_for_missing(column: pd.Series) -> bool:
    """Whether NA and the like are texts: pandas does that in columns of integers too large for its types."""
    return not is_numeric(column) and column.dtype != bool and bool(column.isin(STR_NA_VALUES).any())
