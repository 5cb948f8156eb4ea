from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ffalm.data.category_lookup import as_code, as_text, category_positions, changed_as_floats, distinct, written_alike
from ffalm.errors import UserError


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (1.0, "1"), (1.5, "1.5"), (" a ", "a"), (True, "True"), (np.float32(2), "2")],
)
def test_a_value_reads_as_people_write_it(value: object, text: str) -> None:
    assert as_text(value) == text


def test_values_that_read_alike_are_one_category() -> None:
    codes, texts = distinct(pd.Series([1, "1", 1.0, " 1", "2", None, "", "  "], dtype=object))
    assert texts == ["1", "2"]
    assert codes.tolist() == [0, 0, 0, 0, 1, -1, -1, -1]


def test_a_category_is_found_by_its_text_before_its_value() -> None:
    known = ("1", "01", "True", None)
    column = pd.Series(["01", "1.0", "TRUE", "001", "other", None], dtype=object)
    assert category_positions(column, known).tolist() == [1, 0, 2, -1, -1, 3]


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740992", "9007199254740993.0"),
        ("9007199254740992", "0009007199254740993.000"),
        ("9007199254740994", "9007199254740993.5"),
        ("9" * 5000, "9" * 4999 + "8"),
        ("9" * 5000 + ".0", "9" * 4999 + "8.0"),
        ("inf", "1e999"),
        ("inf", "9" * 400 + ".5"),
        ("1e998", "1e999"),
    ],
)
def test_long_codes_that_are_one_as_floats_are_different_categories(known: str, other: str) -> None:
    assert category_positions(pd.Series([known, other], dtype=object), (known,)).tolist() == [0, -1]
    assert not written_alike([known, other])


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        *(("1.0", "1"), ("1.", "1"), ("+1.00", "1"), ("-1.0", "-1"), ("0.0", "0"), ("-0.0", "0"), (".0", "0")),
        *(("2.50", "2.5"), (".5", "0.5"), ("-.50", "-0.5"), ("100.0", "100"), ("0.00001", "1e-05")),
        *(("007", "007"), ("007.0", "007.0"), ("+7", "+7"), ("1e5", "1e5"), ("1.0e5", "1.0e5"), (".", "."), ("-", "-")),
    ],
)
def test_a_code_is_its_value_where_its_form_is_that_of_a_number_with_a_point(cell: str, code: str) -> None:
    assert as_code(cell) == code


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("9007199254740993.0", "9007199254740993"),  # 2^53 + 1, the first whole number that no float holds
        ("-9007199254740993.", "-9007199254740993"),
        ("123456789012345678.000", "123456789012345678"),  # as a float 123456789012345680
        ("100000000000000000000000.0", "100000000000000000000000"),  # 10^23, as a float 99999999999999991611392
        ("7" * 5000 + ".0", "7" * 5000),  # infinite as a float, and more digits than int() reads
        ("9007199254740993.5", "9007199254740993.5"),  # as a float 9007199254740994
        ("0." + "9" * 20, "0." + "9" * 20),  # as a float 1
        ("7" * 400 + ".5", "7" * 400 + ".5"),
    ],
)
def test_a_code_keeps_the_digits_that_a_float_would_lose(cell: str, code: str) -> None:
    assert as_code(cell) == code


@pytest.mark.parametrize(
    ("text", "known"),
    [
        *(("+7", "7"), ("007", "7"), ("-0", "0"), ("-07", "-7"), ("7e0", "7"), ("007.0", "7"), ("-.0", "0")),
        ("9007199254740993.0", "9007199254740993"),
        ("1.152921504606847e+18", "1152921504606846976"),  # 2^60, as Python prints the float
    ],
)
def test_a_number_is_found_however_it_is_written(text: str, known: str) -> None:
    assert category_positions(pd.Series([text], dtype=object), ("other", known)).tolist() == [1]


@pytest.mark.parametrize(
    ("categories", "alike"),
    [(["01", "1"], True), (["True", "1"], True), (["1", "1", "2"], False), (["a", "A", None], False)],
)
def test_which_categories_a_file_may_not_tell_apart(categories: list[str | None], alike: bool) -> None:
    assert written_alike(categories) is alike


@pytest.mark.parametrize(
    ("categories", "changed"),
    [
        (["9007199254740992", "007", "-0", "2.50", "1e5", "a", None], False),
        (["9007199254740993"], True),
        (["1", "-9007199254740993.0"], True),
        (["9" * 400], True),
    ],
)
def test_which_categories_are_others_as_floats(categories: list[str | None], changed: bool) -> None:
    assert changed_as_floats(categories) is changed


def test_maps_of_arrow_are_no_category() -> None:
    pa = pytest.importorskip("pyarrow")
    maps = pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64()))
    with pytest.raises(UserError, match="lists or records"):
        distinct(pd.Series(pd.arrays.ArrowExtensionArray(maps), name="x"))
