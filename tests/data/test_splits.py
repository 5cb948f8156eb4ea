from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffalm.data.splits import split_by_key, split_rows
from ffalm.errors import UserError


def test_every_row_lands_in_exactly_one_part_in_ascending_order() -> None:
    strata = np.repeat([0, 1, 2, 3], [700, 200, 70, 30])
    parts = split_rows(strata, (0.7, 0.1, 0.2), seed=0)
    assert [len(part) for part in parts] == [700, 100, 200]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert all(np.all(np.diff(part) > 0) for part in parts)


def test_every_stratum_is_shared_out_by_the_fractions() -> None:
    strata = np.repeat([0, 1, 2, 3], [700, 200, 70, 30])
    parts = split_rows(strata, (0.7, 0.1, 0.2), seed=0)
    table = [np.bincount(strata[part], minlength=4).tolist() for part in parts]
    assert table == [[490, 140, 49, 21], [70, 20, 7, 3], [140, 40, 14, 6]]


def test_rounding_does_not_add_up_over_many_small_strata() -> None:
    strata = np.repeat(np.arange(100), 4)  # 0.1 of 4 rows is no whole row, 0.1 of 400 rows is 40
    assert [len(part) for part in split_rows(strata, (0.9, 0.1), seed=3)] == [360, 40]


def test_the_seed_decides_the_split() -> None:
    strata = np.zeros(200, dtype=np.int64)
    once, again, other = (split_rows(strata, (0.5, 0.5), seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


def test_a_split_is_a_shuffle_and_not_the_first_rows() -> None:
    first = split_rows(np.zeros(1000, dtype=np.int64), (0.5, 0.5), seed=0)[0]
    assert 200 < np.sum(first < 500) < 300


def test_rows_with_equal_key_never_straddle_parts() -> None:
    keys = np.array([f"image-{number % 300}" for number in range(900)])
    parts = split_by_key(keys, np.zeros(900, dtype=np.int64), (0.8, 0.1, 0.1), seed=0)
    held = [set(keys[part]) for part in parts]
    assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])
    assert [len(part) for part in parts] == [720, 90, 90]


def test_one_key_larger_than_its_part_still_stays_whole() -> None:
    keys = np.array([0] * 50 + list(range(1, 51)))
    parts = split_by_key(keys, np.zeros(100, dtype=np.int64), (0.6, 0.4), seed=0)
    assert len({bool(np.isin(part, np.arange(50)).any()) for part in parts}) == 2
    assert [len(part) for part in parts] == [60, 40]


def test_the_first_row_of_a_key_speaks_for_its_stratum() -> None:
    keys = np.array([0, 0, 1, 1, 2, 3])
    strata = np.array([0, 1, 0, 1, 1, 1])  # both rows of keys 0 and 1 count as stratum 0
    one, other = split_by_key(keys, strata, (0.5, 0.5), seed=0)
    assert len(one) == len(other) == 3
    assert np.isin([0, 1], keys[one]).sum() == 1
    assert np.isin([2, 3], keys[one]).sum() == 1


def test_an_empty_part_is_an_error() -> None:
    with pytest.raises(UserError, match=r"A part of 0.01 of 10 rows would be empty"):
        split_rows(np.zeros(10, dtype=np.int64), (0.99, 0.01), seed=0)


@pytest.mark.parametrize("fractions", [(0.5, 0.4), (1.2, -0.2), (1.0, 0.0)])
def test_fractions_must_be_positive_and_add_up_to_one(fractions: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="add up to 1"):
        split_rows(np.zeros(10, dtype=np.int64), fractions, seed=0)


def test_keys_and_strata_must_match() -> None:
    with pytest.raises(UserError, match="3 and 4"):
        split_by_key(np.arange(3), np.zeros(4, dtype=np.int64), (0.5, 0.5), seed=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=40, max_size=300), st.integers(0, 1000))
def test_any_strata_are_split_within_one_row_of_exact(strata: list[int], seed: int) -> None:
    cells = np.array(strata)
    fractions = (0.7, 0.1, 0.2)
    parts = split_rows(cells, fractions, seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(cells)))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * len(cells)) < 2
        for cell in np.unique(cells):
            assert abs(np.sum(cells[part] == cell) - fraction * np.sum(cells == cell)) < 2.5


def test_keys_of_many_rows_are_spread_over_the_parts_as_keys_of_few_are() -> None:
    keys = np.concatenate([np.repeat(np.arange(300), 8), np.arange(300, 2700)])
    parts = split_by_key(keys, np.zeros(len(keys), dtype=int), (0.8, 0.1, 0.1), seed=0)
    large = [np.isin(keys[rows], np.arange(300)).mean() for rows in parts]
    assert all(0.35 < share < 0.65 for share in large)
