"""The groups of a table: the values of one column, or of several crossed, and which of them are compared.

Rows whose group is missing, and groups of too few training rows, train and are scored, but are not compared: they come
last, and `excluded` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data.category_lookup import as_text, distinct
from ffalm.data.encoding import is_numeric
from ffalm.data.group_settings import CROSSED_ROWS, unknown_name
from ffalm.data.table_columns import MOST_CATEGORIES
from ffalm.data.table_values import Codes, Value, canonical, empty_in, listed, natural, nearest, pick, place_of
from ffalm.errors import UserError, require

MOST_NUMERIC_GROUPS = 20
REST = "rest"
_FEW_ROWS = 10  # training rows of a group that is compared without a note


@dataclass(frozen=True)
class Grouping:
    """Each row's group, and the names of the groups: compared ones first, then the `excluded` ones."""

    codes: Codes
    names: tuple[str, ...]
    excluded: int = 0
    notes: tuple[str, ...] = ()

    def with_small_last(self, train: Codes, fewest: int, file: str) -> Grouping:
        """The grouping with groups of fewer than `fewest` training rows moved to the excluded ones.

        A note says which groups are compared by very few rows.
        """
        compared = len(self.names) - self.excluded
        counts = np.bincount(self.codes[train], minlength=len(self.names))[:compared]
        small = np.flatnonzero(counts < fewest)
        if len(small) == 0:
            return replace(self, notes=(*self.notes, *_few_rows(self.names, counts)))
        require(
            compared - len(small) >= 2,
            f"Of the groups of {file!r}, fewer than two have {fewest} training rows: lower min_group_size, or cross "
            "fewer columns.",
            "Fewer than two groups of its data file have enough training rows.",
        )
        order = np.concatenate([np.flatnonzero(counts >= fewest), small, np.arange(compared, len(self.names))])
        note = f"Groups of fewer than {fewest} training rows are scored, not compared: "
        return replace(
            self,
            codes=np.argsort(order)[self.codes],
            names=tuple(self.names[place] for place in order),
            excluded=self.excluded + len(small),
            notes=(*self.notes, f"{note}{listed([self.names[place] for place in small])}."),
        )


def group_column(frame: pd.DataFrame, columns: Sequence[str], file: str) -> pd.Series:
    """The group of each row as one column; of crossed columns "female, black", missing where any of them is.

    A value with a comma is quoted there: "a, b" crossed with c and a crossed with "b, c" are two groups.
    """
    parts = [pick(frame, name, file) for name in columns]
    if len(parts) == 1:
        return parts[0]
    coded = [distinct(part) for part in parts]
    for part, (_, values) in zip(parts, coded, strict=True):
        _check_numbers(part, values, file)
    coded = [(codes, [f'"{text}"' if ", " in text else text for text in values]) for codes, values in coded]
    crossed, texts = coded[0]
    for codes, values in coded[1:]:
        known = (crossed >= 0) & (codes >= 0)
        found, cells = pd.factorize(crossed[known] * len(values) + codes[known])
        crossed = np.full(len(codes), -1)
        crossed[known] = found
        texts = [f"{texts[cell // len(values)]}, {values[cell % len(values)]}" for cell in cells]
    return pd.Series(np.array([*texts, None], dtype=object)[crossed], dtype=object, name=", ".join(columns))


def _few_rows(names: Sequence[str], counts: NDArray[np.int64]) -> tuple[str, ...]:
    """A note on groups of so few training rows that gaps to them say nothing, as a mistyped value gives."""
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=False) if count < _FEW_ROWS]
    if not few or (counts >= CROSSED_ROWS).sum() < 2:
        return ()
    return (
        f"Groups of very few training rows are compared: {listed(few)}. Gaps to them mean little, and thresholds or "
        f"constraints for them may cost everybody's accuracy: correct these rows, or set min_group_size to "
        f"{CROSSED_ROWS} (--set data.min_group_size={CROSSED_ROWS}) to score such groups without comparing them.",
    )


def in_stored_order(group: str, stored: str) -> str:
    """Crossed columns in the order in which a model's groups were named: "sex,race" as "race, sex".

    Columns other than the stored ones stay as they are given: a column may have been renamed.
    """
    given, known = ([name.strip() for name in names.split(",")] for names in (group, stored))
    return ",".join(known) if sorted(given) == sorted(known) else group


def code_groups(column: pd.Series, groups: tuple[Value, ...], against_rest: tuple[Value, ...], file: str) -> Grouping:
    """The groups in the given order or in natural order, or some of them against the rest; unknown ones last."""
    codes, values = distinct(column)
    where = f"The group column {str(column.name)!r} of {file!r}"
    require(len(values) <= MOST_CATEGORIES, f"{where} holds {len(values)} values, too many to be groups.")
    require(bool(values), f"{where} is empty in every row.", "Its group column is empty.")
    notes: tuple[str, ...] = ()
    if against_rest:
        order, names, notes = _against_rest(values, against_rest, where, str(column.name))
    else:
        _check_numbers(column, values, file)
        order, names = _in_order(values, groups, where)
        notes = spelled_alike(names)
    missing = int((codes < 0).sum())
    if missing == 0:
        return Grouping(order[codes], names, 0, notes)
    note = (
        f"{missing:,} of {len(codes):,} rows have no {str(column.name)!r}{empty_in(file)}: they train and are scored, "
        "and no gap, constraint or group threshold is about them."
    )
    coded = np.append(order, len(names))[codes]  # the code -1 finds the last one
    return Grouping(coded, (*names, unknown_name(names)), 1, (*notes, note))


def spelled_alike(names: Sequence[str]) -> tuple[str, ...]:
    """A note on groups such as "Male" and "male", which may be meant to be one."""
    forms = [canonical(name) for name in names]
    alike = [name for name, form in zip(names, forms, strict=True) if forms.count(form) > 1]
    if not alike:
        return ()
    return (f"The groups {listed(alike)} differ in spelling alone and are compared as different groups.",)


def _check_numbers(column: pd.Series, values: list[str], file: str) -> None:
    if is_numeric(column) and len(values) > MOST_NUMERIC_GROUPS:
        where = f"The group column {str(column.name)!r} of {file!r}"
        raise UserError(f"{where} holds {len(values)} different numbers: put them into bins, such as age under 40.")


def _in_order(values: list[str], groups: tuple[Value, ...], where: str) -> tuple[Codes, tuple[str, ...]]:
    """The group of each value, and the groups' names."""
    names = tuple(as_text(group) for group in groups) or tuple(sorted(values, key=natural))
    require(len(set(names)) == len(names), f"`groups` lists a group twice: {', '.join(names)}.")
    order = np.array([place_of(value, names) for value in values], dtype=np.int64)
    stray = [value for value, place in zip(values, order, strict=True) if place < 0]
    require(not stray, f"{where} holds {listed(stray)}, which `groups` does not list.")
    require(len(names) >= 2, f"{where} holds one group only, {names[0]!r}: there is nobody to compare with.")
    return order, names


def _against_rest(
    values: list[str], against: tuple[Value, ...], where: str, column: str
) -> tuple[Codes, tuple[str, ...], tuple[str, ...]]:
    """1 for each of these values and 0 for all others, the two group names, and a note on their members."""
    chosen = {place_of(value, values): as_text(value) for value in against}
    if -1 in chosen:
        hint = nearest(chosen[-1], values)
        raise UserError(f"{where} holds no {chosen[-1]!r}, which `against_rest` names: {hint}")
    others = [value for place, value in enumerate(values) if place not in chosen]
    require(bool(others), f"{where} holds only what `against_rest` names: nobody is left to compare with.")
    name = " or ".join(values[place] for place in sorted(chosen, key=lambda place: natural(values[place])))
    rest = REST if name != REST else f"not {REST}"
    note = f"Groups of {column!r} were merged: {name!r} against {rest!r}, which is {listed(others)}."
    return np.isin(np.arange(len(values)), sorted(chosen)).astype(np.int64), (rest, name), (note,)
