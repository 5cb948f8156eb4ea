"""Checks of a table's feature columns, and imputation of missing numbers.

Columns that would silently give a useless model (ids, dates, numbers read as text) are refused; `table_remarks` notes
those that are only suspicious.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data.category_lookup import distinct
from ffalm.data.encoding import is_numeric, numbers, require_real
from ffalm.data.table_values import listed
from ffalm.data.written_numbers import FEWEST_IDS, Decimal, refused_form
from ffalm.errors import UserError
from ffalm.system.spilled_arrays import new_array, release_pages

MOST_CATEGORIES = 1000
MOST_REFUSALS = 4  # columns that are refused with a sentence each


def check_feature(column: pd.Series, declared: bool, file: str, decimal: Decimal = ".") -> None:
    """Refuse a column that would silently give a useless model; `declared` ones are listed as categorical."""
    if is_numeric(column):
        numbers(column)
        return
    codes, values = distinct(column)
    where = f"The column {str(column.name)!r} of {file!r}"
    written = None if declared else refused_form(values, decimal)
    if written is not None:
        kind, example, remedy = written
        public = f"Its column {str(column.name)!r} holds {kind}."
        raise UserError(f"{where} holds {kind}, such as {example!r}: {remedy}.", public)
    pointed = [value.replace(",", ".") for value in values] if decimal == "," else values
    text = pd.to_numeric(pd.Series(pointed, dtype=object), errors="coerce").isna().to_numpy()
    if len(values) > MOST_CATEGORIES or len(values) == len(column) >= FEWEST_IDS:
        remedy = "list it in drop" if text.any() else "list it in drop, or convert it to numbers if it is a quantity"
        raise UserError(
            f"{where} holds {len(values)} different texts in {len(column)} rows, like a name or an id: {remedy}.",
            f"Its column {str(column.name)!r} holds a different text in nearly every row, like a name or an id.",
        )
    if not declared and 0 < 10 * text.sum() <= len(values) and len(values) > FEWEST_IDS:
        rows = np.flatnonzero(np.isin(codes, np.flatnonzero(text)))
        raise UserError(
            f"{where} holds numbers, but text such as {values[codes[rows[0]]]!r} in {len(rows)} "
            f"row{'s' * (len(rows) > 1)}, first in data row {rows[0] + 1}: correct it, or list the column in "
            f"categorical or drop.",
            f"Its column {str(column.name)!r} holds numbers, but text in some rows.",
        )


def as_category(column: pd.Series) -> pd.Series:
    """A column whose numbers are codes, as a non-numeric type; `category` takes less memory than `object`."""
    if not is_numeric(column):
        return column
    return column.astype("category" if column.dtype in (np.int64, np.float64) else object)


def several_refused(refused: dict[str, UserError]) -> UserError:
    """One error for all refused columns: their messages if they are few, else the first and the names of the others."""
    first, *_ = refused.values()
    if len(refused) <= MOST_REFUSALS:
        return UserError(" ".join(map(str, refused.values())), first.public)
    _, *others = refused
    return UserError(f"{first} The columns {listed(others)} cannot be used either.", first.public)


def filled(
    frame: pd.DataFrame, names: Iterable[str], train: NDArray[np.int64], mean: bool, file: str
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Replace missing numbers in these columns by the training rows' mean, or refuse them."""
    notes, frame, means, refused = [], frame.copy(deep=False), dict[str, float](), dict[str, UserError]()
    for name in names:
        column = frame[name]
        missing = column.isna().to_numpy() if is_numeric(column) else np.zeros(len(column), dtype=bool)
        count = int(missing.sum())
        if not count:
            continue
        require_real(column)
        known, where = column.iloc[train].dropna(), f"The numeric column {name!r} of {file!r}"
        if not len(known):
            every = "row" if count == len(column) else "training row"
            refused[name] = UserError(f"{where} is empty in every {every}: list it in drop (--drop).")
        elif not mean:
            first = int(missing.argmax()) + 1
            refused[name] = UserError(
                f"{where} is empty in {count:,} of {len(column):,} rows, first in data row {first}: "
                "fill them in, list the column in drop (--drop), or set missing to 'mean' (--missing mean)."
            )
        else:
            means[name] = float(known.mean())
            notes.append(
                f"The column {name!r} was empty in {count:,} of {len(column):,} rows; the mean was used there."
            )
        release_pages()
    if refused:
        raise several_refused(refused)
    room = new_array((len(means), len(frame)), np.float64)
    for values, (name, value) in zip(room, means.items(), strict=True):
        values[...] = frame[name].astype(np.float64).fillna(value)
        frame[name] = pd.Series(values, index=frame.index, copy=False)
        release_pages()
    return frame, tuple(notes)
