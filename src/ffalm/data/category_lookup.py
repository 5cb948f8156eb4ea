"""Categories by what they spell: the text that a value is, the values that a column has, and their places among others.

One category comes in many types and spellings. The same column may be numbers in one file and text in the next, since
pandas infers types from a whole column, so values are compared only by what they spell.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.errors import PublicError

_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_NUMBER = re.compile(rf"{_DECIMAL.pattern}([eE][+-]?[0-9]{{1,3}})?")
_FRACTION = re.compile(r"[+-]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)")


def as_text(value: object) -> str:
    """A value as text: 1, 1.0 and " 1" are one category whatever their type, and so is é in any Unicode form."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return unicodedata.normalize("NFC", str(value).strip())


def as_code(text: str) -> str:
    """The category that a cell of a file spells, whatever else its column holds.

    1.0 is 1 and TRUE is True, as in a column of numbers or truth values; 007, +7 and 1e5 are codes of their own.
    """
    text = as_text(text)
    if _FRACTION.fullmatch(text):
        return _decimal(text)
    return text.capitalize() if text.lower() in ("true", "false") else text


def distinct(column: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """Each row's index in the returned list of values, in order of appearance; -1 for a missing value."""
    try:
        codes, uniques = pd.factorize(column)
    except (TypeError, NotImplementedError):  # Arrow raises the latter for maps
        raise PublicError(
            f"The column {str(column.name)!r} holds lists or records, which cannot be categories."
        ) from None
    places: dict[str, int] = {}
    lookup = np.full(len(uniques) + 1, -1, dtype=np.int64)  # the last one serves the code -1
    for number, unique in enumerate(uniques):
        text = as_text(unique)
        if text:
            lookup[number] = places.setdefault(text, len(places))
    return lookup[codes], list(places)


def category_positions(column: pd.Series, categories: tuple[str | None, ...]) -> NDArray[np.int64]:
    """The index of each row's category among the known ones, -1 for an unknown one.

    A file is read by what it holds: 01 may be the text "01" in one and the number 1 in another, and TRUE a text or a
    truth value. A text that is no category is therefore looked up as a code, then by the value that it writes.
    """
    codes, texts = distinct(column)
    place = {category: number for number, category in enumerate(categories)}
    written = _by_written_value(categories)
    for text in texts:
        if text not in place and as_code(text) in place:
            place[text] = place[as_code(text)]
        elif text not in place and len(alike := written.get(written_value(text), [])) == 1:
            place[text] = place[alike[0]]
    return np.array([place.get(text, -1) for text in [*texts, None]], dtype=np.int64)[codes]


def written_alike(categories: Iterable[str | None]) -> bool:
    """Whether some categories, such as 01 and 1, are one number or truth value once a file is read by what it holds."""
    return any(len(alike) > 1 for alike in _by_written_value(categories).values())


def changed_as_floats(categories: Iterable[str | None]) -> bool:
    """Whether some categories, such as 9007199254740993, change in a file that is read as floats."""
    decimals = (one for one in categories if one is not None and _DECIMAL.fullmatch(one))
    return any(as_text(float(one)) != written_value(one) for one in decimals)


def _by_written_value(categories: Iterable[str | None]) -> dict[str, list[str]]:
    written: dict[str, list[str]] = {}
    for category in dict.fromkeys(categories):
        if category is not None:
            written.setdefault(written_value(category), []).append(category)
    return written


def written_value(text: str) -> str:
    """The number that a text spells in one normal form, 1 and 0 for true and false; other texts as they are.

    Long whole numbers with an exponent are how floats are printed, so they are read as floats are.
    """
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return as_text(number)
    return {"true": "1", "false": "0"}.get(text.lower(), text)


def _decimal(text: str) -> str:
    """A number without an exponent in one normal form; a fraction that a float cannot hold as it is written.

    Whole numbers go digit by digit: as floats, long codes such as 9007199254740992 and 9007199254740993.0 would be one.
    """
    whole, _, fraction = text.partition(".")
    if not fraction.strip("0"):
        digits = whole.lstrip("+-").lstrip("0") or "0"
        return f"-{digits}" if whole.startswith("-") and digits != "0" else digits
    number = float(text)
    return text if number.is_integer() or math.isinf(number) else str(number)
