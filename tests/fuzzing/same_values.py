"""The same values given in another way: whatever is taken must give the same numbers.

Containers of arrays and columns, the order of a data frame's columns, and files of codes that different sites hold.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import ffalm
from ffalm.data.category_lookup import as_text
from ffalm.data.table_files import read_table

_ROWS = 40
_CODES = ("007", "7", "7.0", "1.50", "1.5", "1e5", "+7", "TRUE", "true", "x", "", "9007199254740993", "0", "00")
_X = np.random.default_rng(0).normal(size=(_ROWS, 3)).round(3)
_Y, _G, _P = np.arange(_ROWS) % 3 % 2, np.arange(_ROWS) // 2 % 2, np.arange(_ROWS) % 5 % 2
_S = (np.arange(_ROWS) * 7 % _ROWS) / _ROWS
_NAMES = ["a", "b", "c"]
_NAMED = pd.DataFrame(_X, columns=_NAMES)

#: One column of the whole numbers 0 and 1.
COLUMNS: tuple[Callable[[Any], Any], ...] = (
    list, torch.tensor, np.ma.masked_array, lambda v: v.astype(float), lambda v: v.astype(bool),
    lambda v: v.astype(">i4"), lambda v: v.astype("u8"), lambda v: v.astype(object), lambda v: np.repeat(v, 2)[::2],
    lambda v: pd.Series(v, index=v[::-1]), lambda v: pd.Series(v, dtype="Int64"),
    lambda v: pd.Series(v, dtype="boolean"), lambda v: pd.Series(pd.Categorical(v, categories=[1, 0])),
    lambda v: pd.Series(v, dtype="int64[pyarrow]"), lambda v: torch.tensor(v).bfloat16(),
    lambda v: torch.tensor(v).double().requires_grad_(), lambda v: torch._neg_view(-torch.tensor(v)),
)  # fmt: skip
#: Features, some of them named.
FEATURES: tuple[Callable[[Any], Any], ...] = (
    list, torch.tensor, np.asfortranarray, pd.DataFrame, lambda x: x.tolist(), lambda x: x.astype(">f8"),
    lambda x: x.astype(np.longdouble), lambda x: torch._neg_view(-torch.tensor(x)), lambda _: _NAMED,
    lambda _: _NAMED[_NAMES[::-1]], lambda _: _NAMED.astype("Float64"),
    lambda _: _NAMED.astype("double[pyarrow]")[["b", "c", "a"]], lambda _: _NAMED.set_axis([0] * _ROWS),
)  # fmt: skip


def _tally(draws: random.Random) -> object:
    given = [draws.choice(COLUMNS)(one) for one in (_Y, _P, _G)]
    return ffalm.metrics.tally(*given).metrics()


def _audit(draws: random.Random) -> object:
    given = [draws.choice(COLUMNS)(one) for one in (_Y, _P, _G)]
    found = ffalm.audit(**dict(zip(("label", "prediction", "group"), given, strict=True)), min_group=1)
    return dict(found.metrics)


def _repair(draws: random.Random) -> object:
    groups = draws.choice(COLUMNS)(_G)
    found = ffalm.repair(_S, draws.choice(COLUMNS)(_Y), groups, target="dpd <= 0.2")
    return found.predict(_S, groups).tolist()


def _missing(draws: random.Random) -> object:
    """A missing group beside texts."""
    missing = draws.choice((None, float("nan"), pd.NA, np.nan))
    groups: Any = [missing if place % 7 == 0 else "ab"[code] for place, code in enumerate(_G)]
    groups = draws.choice((list, tuple, pd.Series, lambda v: np.array(v, dtype=object)))(groups)
    found = ffalm.audit(label=_Y, prediction=_P, group=groups, min_group=1)
    return dict(found.metrics)


def _features(draws: random.Random) -> object:
    """Of two clients, the first with names; what has none is taken in the same order."""
    parts = [(draws.choice(COLUMNS)(_Y), draws.choice(COLUMNS)(_G)) for _ in range(2)]
    found = ffalm.Federation.from_arrays([(_NAMED, *parts[0]), (draws.choice(FEATURES)(_X), *parts[1])])
    return [[client.x.float().tolist(), client.y.tolist(), client.group.tolist()] for client in found.clients]


def _files(draws: random.Random, here: Path) -> Callable[[], None]:
    """A code means the same whatever stands above and below it in its file."""
    file = here / "codes.csv"

    def read(cells: list[str]) -> list[str]:
        with open(file, "w", newline="", encoding="utf-8") as written:
            csv.writer(written).writerows([("code", "paid"), *((cell, 1) for cell in cells)])
        column = read_table(str(file), codes={"code"})[0]["code"]
        return ["" if missing else as_text(value) for value, missing in zip(column, column.isna(), strict=True)]

    cells = [draws.choice(_CODES) for _ in range(draws.randrange(1, 9))]

    def compare() -> None:
        assert read(cells) == [read([cell])[0] for cell in cells], f"codes depend on each other: {cells}"

    return compare


def call(draws: random.Random, here: Path) -> Callable[[], object]:
    """Give the same values in two ways, and compare."""
    asked = draws.choice((_tally, _audit, _repair, _missing, _features, None))
    if asked is None:
        return _files(draws, here)
    one, other = random.Random(draws.random()), random.Random(draws.random())

    def compare() -> None:
        try:
            found = asked(one), asked(other)
        except ffalm.UserError:
            return
        assert repr(found[0]) == repr(found[1]), f"{asked.__name__}: the same values, other numbers"

    return compare
