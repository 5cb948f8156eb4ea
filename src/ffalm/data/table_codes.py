"""Columns of codes in text files: categories and groups, of which every cell is read by itself.

pandas reads a column by all that it holds: 007 is the number 7 in a file of numbers, and a text beside A1. Sites of a
federation each read a file of their own, so what a cell means must not depend on the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from ffalm.data.category_lookup import as_code, as_text
from ffalm.data.encoding import is_numeric

_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d*")

Reader = Callable[[Sequence[int]], Iterable[pd.DataFrame]]
"""Reads some columns, by their places in ascending order, as text in pieces."""


def code_columns(categorical: Collection[str], others: Collection[str] = ()) -> set[str]:
    """The columns that are categories even if their values are numbers; a name with commas may list several.

    `others`, such as groups, are names of single columns.
    """
    parts = [part.strip() for name in categorical for part in name.split(",")]
    return {*categorical, *parts, *others}


def spell_codes(frame: pd.DataFrame, places: Sequence[int], decimal: Literal[".", ","], texts: Reader) -> None:
    """Replace these columns of a table by the categories that their cells spell.

    A column of numbers stays if each is spelled as numbers are, so that no code such as 007 is lost.
    """
    numeric = [place for place in places if is_numeric(frame.iloc[:, place])]
    for place in {*places} - {*numeric}:
        frame.isetitem(place, _spelled(frame.iloc[:, place], decimal))
    for place, column in zip(numeric, _read(texts(numeric), decimal) if numeric else (), strict=True):
        if {*column.cat.categories} != {as_text(number) for number in frame.iloc[:, place].dropna().unique()}:
            frame.isetitem(place, column)


def _spelled(column: pd.Series, decimal: Literal[".", ","]) -> pd.Series:
    """A column of texts as categories; any other column, and one whose texts are categories already, as it is."""
    codes, found = pd.factorize(column)
    texts = list(found)
    if not all(isinstance(text, str) for text in texts):
        return column
    pointed = [_pointed(text) if decimal == "," else text for text in texts]
    if all(as_code(own) == text for own, text in zip(pointed, texts, strict=True)):
        return column
    return _Categories().add(codes, pointed).column()


def _pointed(text: str) -> str:
    """A number with a decimal comma as it is spelled with a point; other texts as they are."""
    return text.replace(",", ".") if is_comma_number(text) else text


def is_comma_number(text: str) -> bool:
    """Whether a cell is a number with a decimal comma."""
    return bool(_COMMA_NUMBER.fullmatch(text.strip()))


def _read(pieces: Iterable[pd.DataFrame], decimal: Literal[".", ","]) -> list[pd.Series]:
    """The columns of these pieces as categories."""
    columns: list[_Categories] = []
    for piece in pieces:
        columns = columns or [_Categories() for _ in range(piece.shape[1])]
        for place, column in enumerate(columns):
            codes, found = pd.factorize(piece.iloc[:, place])
            column.add(codes, [text.replace(decimal, ".") for text in found])
    return [column.column() for column in columns]


class _Categories:
    """The categories of a column, of which pieces are added."""

    def __init__(self) -> None:
        self._codes: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
        self._places: dict[str, int] = {}

    def add(self, codes: np.ndarray[tuple[int], np.dtype[np.intp]], texts: Sequence[str]) -> _Categories:
        spelled = [as_code(text) for text in texts]
        places = [self._places.setdefault(text, len(self._places)) if text else -1 for text in spelled]
        self._codes.append(np.array([*places, -1], dtype=np.int32)[codes])  # the code -1 finds the last one
        return self

    def column(self) -> pd.Series:
        return pd.Series(pd.Categorical.from_codes(np.concatenate(self._codes), pd.Index([*self._places], dtype=str)))
