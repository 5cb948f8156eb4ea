"""Values of table columns: their natural order, matching what a user typed, and lists of them for messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from unicodedata import normalize

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data import SEPARATORS
from ffalm.data.category_lookup import as_text, distinct, written_value
from ffalm.errors import UserError, require

Value = str | int | float | bool
Codes = NDArray[np.int64]

#: Ways of saying no and yes; `canonical` makes 0 and 1 of false and true.
_YES_NO = ({"0", "1"}, {"no", "yes"}, {"n", "y"}, {"f", "t"})


def column_name(name: object) -> str:
    """The name of a column without surrounding spaces, in Unicode NFC form: a file may hold e and an accent for é."""
    return normalize("NFC", str(name).strip())


def pick(frame: pd.DataFrame, name: str, file: str) -> pd.Series:
    """A column by name, or a `UserError` that suggests the closest one."""
    name = name if name in frame.columns else normalize("NFC", name)
    if name not in frame.columns:
        names = [str(column) for column in frame.columns]
        hint = nearest(name, names, "columns")
        raise UserError(f"{file!r} has no column {name!r}: {hint}", f"Its data file has no column {name!r}.")
    require(list(frame.columns).count(name) == 1, f"{file!r} has more than one column named {name!r}.")
    return frame[name]


def listed_columns(frame: pd.DataFrame, names: Sequence[str], file: str) -> list[str]:
    """The columns of a setting such as `drop`; a name with commas that is no column lists several."""
    each = [[name] if name in frame.columns else [part.strip() for part in name.split(",")] for name in names]
    return [str(pick(frame, name, file).name) for parts in each for name in parts]


def empty_in(file: str) -> str:
    """What counts as an empty cell of a text file, for messages: a user may mean the word None as a value."""
    return " (a word such as NA, None or null counts as empty)" if file.lower().endswith((*SEPARATORS,)) else ""


def complete(column: pd.Series, role: str, file: str) -> tuple[Codes, list[str]]:
    """Each row's index in the returned list of values, for a column without missing values."""
    codes, values = distinct(column)
    missing = np.flatnonzero(codes < 0)
    if len(missing):
        raise UserError(
            f"The {role} column {str(column.name)!r} of {file!r} is empty in {len(missing)} of {len(codes)} "
            f"rows, first in data row {missing[0] + 1}{empty_in(file)}: fill them in or leave those rows out.",
            f"Its {role} column {str(column.name)!r} is empty in some rows.",
        )
    return codes, values


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A sort key for natural order: 2 before 10, -1 before 0."""
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", text):
        return ((0, float(text), ""), (3, 0.0, text))
    pieces = (piece for piece in re.split(r"(\d+)", text.casefold()) if piece)
    key = ((1, float(piece), "") if piece.isdecimal() else (2, 0.0, piece) for piece in pieces)
    return (*key, (3, 0.0, text))


def canonical(value: object) -> str:
    """A normal form in which 1, "1.0" and True are equal, and so are "Yes" and "yes"; and digits of any script."""
    text = as_text(value).casefold()
    if text.isascii():
        return written_value(text)
    try:
        return as_text(float(text))
    except ValueError:
        return text


def several_yes_and_no(values: Sequence[str]) -> bool:
    """Whether the values say nothing but yes and no, and that in several ways, such as 0, 1, no and yes."""
    words = {canonical(value) for value in values}
    pairs = [pair for pair in _YES_NO if pair & words]
    return len(pairs) > 1 and any(pair <= words for pair in pairs) and words <= set().union(*pairs)


def place_of(value: Value, values: Sequence[str]) -> int:
    """The index of a value by exact match, else by its normal form; -1 if there is none."""
    if as_text(value) in values:
        return values.index(as_text(value))
    alike = [place for place, other in enumerate(values) if canonical(other) == canonical(value)]
    return alike[0] if len(alike) == 1 else -1


def nearest(name: str, known: list[str], what: str = "values") -> str:
    """The end of a message about an unknown name: the one that begins with it, the closest one, or all known ones."""
    longer = [one for one in known if one.casefold().startswith(name.casefold())]
    near = longer if len(longer) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"its {what} are {listed(known)}."


def listed(values: list[str], most: int = 10) -> str:
    """Values for a message, the first of them if there are many."""
    shown = ", ".join(repr(value) for value in sorted(values, key=natural)[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
