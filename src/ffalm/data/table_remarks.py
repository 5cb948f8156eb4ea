"""Notes on feature columns that are usable and suspicious: each says what to do if the suspicion is right.

Constants and row numbers carry nothing. Numbers such as -999 for a missing value, codes that are taken for quantities,
and columns that are filled in after the outcome all give a model, of an accuracy that misleads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data.category_lookup import distinct
from ffalm.data.encoding import is_numeric
from ffalm.data.written_numbers import FEWEST_IDS, noted_form, text_among_numbers

Codes = NDArray[np.int64]
Numbers = NDArray[np.float64]

_FEWEST_ROWS, _MOST_ROWS = 200, 10_000  # training rows that are looked at together with their labels
_FEWEST_OTHERS = 10  # rows without the most frequent label, in smaller tables: so many are not predicted by chance
_FREQUENT, _REVEALED = 0.98, 0.999  # shares of rows: of the most frequent label, and of labels known by one column
_STAND_INS = {-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0}  # for missing values
_FEWEST_CODES, _ROWS_A_CODE = 6, 10
_CLEAR, _SHARE = 20.0, 0.01  # standard errors, and share of the label's variance, beyond what a curve explains


def remarks(
    features: pd.DataFrame,
    y: Codes,
    train: Codes,
    declared: Collection[str] = (),
    strange: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The notes on all columns, in their order; `y` are label codes, the favourable label the largest.

    `declared` columns are categories whatever their texts look like; `strange` has a note on each column whose
    numbers are written like codes or thousands in the file.
    """
    strange = strange or {}
    rows = train[:: 1 + len(train) // _MOST_ROWS]  # evenly spaced, since files may be sorted
    labels = y[rows]
    others = len(rows) - np.bincount(labels).max()
    enough = len(rows) >= _FEWEST_ROWS and others >= (1 - _FREQUENT) * len(rows)
    notes = []
    for name, column in features.items():
        found = _of_column(column) or ([] if name in declared else _written(column.iloc[rows]))
        if (enough or others >= _FEWEST_OTHERS) and not found:
            found = _with_labels(column.iloc[rows], labels, enough and name not in strange)
        if name in strange:
            found.append(strange[str(name)])
        notes += [f"The column {str(name)!r} {one}" for one in found]
    return tuple(notes)


def _of_column(column: pd.Series) -> list[str]:
    """Notes from the column alone."""
    if column.iloc[:FEWEST_IDS].nunique(dropna=False) == 1 == column.nunique(dropna=False):
        return ["is constant and carries no information."]
    if not is_numeric(column):
        return []
    values = _values(column)
    whole = pd.api.types.is_integer_dtype(column.dtype) and len(column) >= FEWEST_IDS
    if whole and np.all(np.diff(values) == 1):
        return ["is a row number; list it in drop unless it is a feature."]  # in a sorted file it reveals the label
    if whole and _all_differ(values):
        return ["holds a different whole number in every row, like an id: list it in drop unless it is a quantity."]
    return _stand_in(values)


def _all_differ(values: Numbers) -> bool:
    """Whether no number occurs twice, although many would if they were drawn independently from their range.

    n numbers of a range of R are all different with a probability of at most about exp(-n^2 / 2R).
    """
    first = values[:_MOST_ROWS]
    dense = len(values) ** 2 > 2 * _CLEAR * (np.ptp(values) + 1)
    return bool(dense) and len(np.unique(first)) == len(first) and len(np.unique(values)) == len(values)


def _written(column: pd.Series) -> list[str]:
    """A note on texts that look like numbers, dates, durations or amounts, or on numbers with a text among them."""
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    if pd.api.types.is_numeric_dtype(values.dtype):
        return []
    _, texts = distinct(column)
    if (text := text_among_numbers(texts)) is not None:
        return [
            f"holds numbers, but also text such as {text!r}, so each number is a category of its own: if the numbers "
            "are a quantity, leave these cells empty and set missing to 'mean'; else list it in categorical."
        ]
    if (form := noted_form(texts)) is None:
        return []
    return [
        f"holds texts that look like {form.kind}, such as {form.example!r}, and each is a category of its own: "
        f"{form.remedy}."
    ]


def _stand_in(values: Numbers) -> list[str]:
    """A number such as -999 farther from all others than they are from each other."""
    for code in (values.min(), values.max()):
        others = values[values != code]
        if code in _STAND_INS and 0 < len(others) < len(values) - 1:
            nearest = others.min() if code < others.min() else others.max()
            if abs(code - nearest) > np.ptp(others) > 0:
                return [
                    f"holds {code:g} in {len(values) - len(others):,} rows, far from its other numbers: if that stands "
                    "for a missing value, leave these cells empty and set missing to 'mean'."
                ]
    return []


def _with_labels(column: pd.Series, labels: Codes, enough: bool) -> list[str]:
    """Notes from the column together with the labels of its rows; `enough`: whether these can show that it is codes."""
    rows, known = len(labels), _predicted_right(column, labels)
    others = rows - int(np.bincount(labels).max())
    if rows - known <= (1 - _REVEALED) * min(rows, others / (1 - _FREQUENT)):  # fewer errors if a label is rare
        return [
            f"alone gives the label away in {known / rows:.1%} of the training rows: list it in drop if it is known "
            "only after the outcome."
        ]
    favourable = (labels == labels.max()).astype(np.float64)
    if enough and is_numeric(column) and (count := _as_codes(_values(column), favourable)):
        return [
            f"holds {count} different whole numbers that predict the label better as categories than as quantities: "
            "list it in categorical if they are codes."
        ]
    return []


def _predicted_right(column: pd.Series, labels: Codes) -> int:
    """How many labels are predicted right by the majority label of each category, or of each side of one threshold."""
    if not is_numeric(column):
        codes, names = distinct(column)
        if len(names) > max(len(column) / FEWEST_IDS, labels.max() + 2):  # a code for each label, and another
            return 0
        counts = np.zeros((len(names) + 1, labels.max() + 1), dtype=np.int64)
        np.add.at(counts, (codes, labels), 1)
        return int(counts.max(1).sum())
    values = _values(column)
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.diff(values[order]) > 0)
    if not len(ends):
        return 0
    below = np.cumsum(np.eye(labels.max() + 1, dtype=np.int64)[labels[order]], axis=0)
    return int((below[ends].max(1) + (below[-1] - below[ends]).max(1)).max())


def _as_codes(values: Numbers, favourable: Numbers) -> int:
    """How many different whole numbers there are, if a cubic curve through their label rates clearly fits badly; or 0.

    The test of lack of fit: F = (SS of rates about the curve / (K - 4)) / (SS of labels about rates / (n - K)), which
    is 1 +- sqrt(2 / (K - 4)) where the curve is right.
    """
    numbers, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    kinds, rows = len(numbers), len(values)
    amounts = 2 * counts.max() > rows  # most are one number, such as 0: a quantity that few have
    if amounts or not _FEWEST_CODES <= kinds <= rows / _ROWS_A_CODE or (numbers != np.round(numbers)).any():
        return 0
    rates = np.bincount(place, favourable) / counts
    scaled = (numbers - numbers.mean()) / numbers.std()
    # `full` avoids numpy's warning when far outliers leave the others nearly equal; a cubic curve fits these too.
    fitted, _ = np.polynomial.Polynomial.fit(scaled, rates, 3, w=np.sqrt(counts), full=True)
    curve = fitted(scaled)
    lack, within = float((counts * (rates - curve) ** 2).sum()), float(((favourable - rates[place]) ** 2).sum())
    if within == 0 or lack < _SHARE * rows * float(favourable.var()):
        return 0
    ratio = (lack / (kinds - 4)) / (within / (rows - kinds))
    return kinds if ratio > 1 + _CLEAR * math.sqrt(2 / (kinds - 4)) else 0


def _values(column: pd.Series) -> Numbers:
    values: Numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values
