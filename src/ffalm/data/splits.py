"""Random splits stratified by (label, group).

Stratified, because gaps of a small group with few test rows would be noise. Rows that belong together (one person, one
image stored twice) stay in one part, otherwise the test part leaks into training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import UserError, require
from ffalm.randomness import Purpose, generator

Rows = NDArray[np.int64]
Shares = NDArray[np.float64]


def check_shares(validation: float, test: float, of: str = "", what: str = "rows") -> None:
    """Refuse validation and test shares that leave nothing to train on."""
    require(
        min(validation, test) > 0 and validation + test < 1,
        f"The validation and test shares{of} must leave {what} to train on; got {validation} and {test}.",
    )


def split_rows(strata: NDArray[np.integer], fractions: Sequence[float], seed: int) -> list[Rows]:
    """Ascending row numbers of each part; strata are divided as exactly as whole rows allow."""
    return split_by_key(np.arange(len(strata)), strata, fractions, seed)


def split_by_key(
    keys: NDArray[np.generic], strata: NDArray[np.integer], fractions: Sequence[float], seed: int
) -> list[Rows]:
    """Like `split_rows`, but rows with equal key land in the same part.

    Keys may be numbers or strings. If rows of one key differ in stratum, that of the first row is used.
    """
    _check(len(keys), len(strata), fractions)
    _, first, key_of_row, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    part_of_key = np.empty(len(first), dtype=np.int64)
    stratum_of_key = np.asarray(strata)[first]
    draw = generator(seed, Purpose.SPLIT)
    owed = np.zeros(len(fractions))  # rows each part still lacks; carried over, so that rounding errors do not add up
    order = np.argsort(stratum_of_key, kind="stable")
    for stratum in np.split(order, np.flatnonzero(np.diff(stratum_of_key[order])) + 1):
        members = draw.permutation(stratum)
        owed += np.asarray(fractions) * sizes[members].sum()
        _share_out(members, sizes, np.asarray(fractions), owed, part_of_key)
    part_of_row = part_of_key[key_of_row]
    parts = [np.flatnonzero(part_of_row == part) for part in range(len(fractions))]
    for part, fraction in zip(parts, fractions, strict=True):
        require(
            len(part) > 0,
            f"A part of {fraction:g} of {len(keys)} rows would be empty: use more rows or a larger fraction.",
            "It has too few rows to split into training, validation and test rows.",
        )
    return parts


def _share_out(members: Rows, sizes: Rows, fractions: Shares, owed: Shares, part_of_key: Rows) -> None:
    """Assign each key of one stratum to the part that lacks most rows, in random order; writes in place.

    For keys of several rows the deficit is relative to the part's size; otherwise large keys, such as people with many
    images, would nearly all end up in the largest part.
    """
    single = sizes[members] == 1
    _one_by_one(members[~single], sizes, fractions, owed, part_of_key)
    singles = members[single]
    whole = np.floor(np.maximum(owed, 0.0)).astype(np.int64)
    if whole.sum() <= len(singles):
        bulk = int(whole.sum())
        part_of_key[singles[:bulk]] = np.repeat(np.arange(len(owed)), whole)
        owed -= whole
        singles = singles[bulk:]
    _one_by_one(singles, sizes, np.ones_like(owed), owed, part_of_key)


def _one_by_one(keys: Rows, sizes: Rows, scale: Shares, owed: Shares, part_of_key: Rows) -> None:
    for key in keys:
        part = int(np.argmax(owed / scale))
        part_of_key[key] = part
        owed[part] -= sizes[key]


def _check(keys: int, strata: int, fractions: Sequence[float]) -> None:
    if keys != strata:
        raise UserError(f"A split needs one key and one stratum per row; got {keys} and {strata}.")
    if not all(0 < fraction <= 1 for fraction in fractions) or not math.isclose(sum(fractions), 1.0):
        shown = ", ".join(f"{fraction:g}" for fraction in fractions)
        raise UserError(f"The fractions of a split must be above 0 and add up to 1; got {shown}.")
