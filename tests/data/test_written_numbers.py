"""Texts that write numbers, dates or durations are refused or noted, and codes are not."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from ffalm.data.written_numbers import decimal_mark, noted_form, refused_form, text_among_numbers

MANY = range(100, 160)


@pytest.mark.parametrize("decimal", [".", ","])
def test_thousands_separators_are_refused_without_the_advice_to_read_them_as_decimals(decimal: Any) -> None:
    mark = "," if decimal == "." else "."
    for beside in (["975"], [f"34{decimal}5"], [f"1{mark}234{mark}567"], [str(one) for one in MANY]):
        found = refused_form([f"8{mark}500", f"-12{mark}250", *beside], decimal)
        assert found is not None and "before three digits, as thousands are written" in found.kind
        assert found.example == f"8{mark}500" and "(8500)" in found.remedy and "set decimal" not in found.remedy


def test_a_comma_before_other_than_three_digits_is_a_decimal_comma() -> None:
    for values in (["0,25", "1,125"], ["0,125", "0,250"], ["3", "1234,567"]):
        found = refused_form(values)
        assert (
            found is not None and found.kind == "numbers with a decimal comma" and "set decimal to ','" in found.remedy
        )


def test_the_decimal_mark_of_numbers_is_found_unless_it_may_part_thousands() -> None:
    assert decimal_mark(["3,4E-05", "0,73"]) == ("3,4", ",") and decimal_mark(["1,5 e", "0,73"]) is None
    assert decimal_mark(["1", "0,73"]) == ("0,73", ",") and decimal_mark(["3654.35"]) == ("3654.35", ".")
    for values in (["8,500", "1"], ["0,5", "a"], ["1"], ["0,5", "0.5"], []):
        assert decimal_mark(values) is None


def test_many_numbers_as_text_are_noted_unless_they_are_written_as_codes() -> None:
    for ages in ([f"{one}" for one in MANY], [f"{one}.5" for one in MANY]):
        noted = noted_form(ages)
        assert refused_form(ages) is None and noted is not None and (noted.kind, noted.example) == ("numbers", ages[0])
        assert noted_form([f"0{one}" for one in ages]) is None and noted_form(ages[:20]) is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["3", "1", "-", "2", "4"], "-"),
        (["0", "1", "2", "3+"], None),  # counts with an open end, a category of their own
        (["0.5", "1,5", "-2", "10", "n/a", "7", "8", "9", "?"], "n/a"),
        (["1", "2", "3", "4", "-", "?"], None),  # a third of them is text
        (["01", "02", "03", "04", "x"], None),  # codes
        (["1", "2", "3", "4", "5"], None),
        (["low", "high", "-"], None),
        ([], None),
    ],
)
def test_a_text_among_numbers_is_found(values: list[str], text: str | None) -> None:
    assert text_among_numbers(values) == text


def test_a_decimal_point_in_a_file_of_decimal_commas_is_refused_where_it_has_many_values() -> None:
    found = refused_form([f"{one}.5" for one in MANY], ",")
    assert found is not None and (found.kind, found.example) == ("numbers with a decimal point", "100.5")
    assert refused_form(["1.1", "1.2", "2.1"], ",") is None  # versions, which are categories


def test_both_marks_in_one_column_are_refused() -> None:
    found = refused_form([*(f"{one}.5" for one in MANY), "8,500"])
    assert found is not None and found.example == "8,500"
    found = refused_form([*(f"{one}.5" for one in MANY), *(f"{one},25" for one in MANY)])
    assert found is not None and found.kind == "numbers with signs or thousands separators"


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (lambda one: pd.Timestamp("2020-01-01") + pd.Timedelta(days=one), "dates"),
        (lambda one: pd.Timedelta(minutes=one), "times or durations"),
        (lambda one: f"{one // 60}:{one % 60:02d}", "times or durations"),
        (lambda one: f"PT{one}M", "times or durations"),
        (lambda one: f"CHF {one}", "numbers with a currency or a unit"),
        (lambda one: f"{one} kg", "numbers with a currency or a unit"),
        (lambda one: f"{'CHF' if one % 2 else 'EUR'}{one}.50", "numbers with a currency or a unit"),
        (lambda one: f"({one})" if one % 3 else f"{one}", "numbers in brackets"),
    ],
)
def test_texts_that_look_like_quantities_are_noted(form: Any, kind: str) -> None:
    values = [one.strftime("%d %b %Y") if isinstance(one := form(n), pd.Timestamp) else str(one) for n in MANY]
    assert refused_form(values) is None
    found = noted_form(values)
    assert found is not None and (found.kind, found.example in values) == (kind, True)


@pytest.mark.parametrize("form", ["street {}", "A{}", "{}-B", "E{}.9", "town of {} hills"])
def test_codes_and_names_are_not_noted(form: str) -> None:
    assert noted_form([form.format(one) for one in MANY]) is None
    assert noted_form([f"CHF {one}" for one in range(20)]) is None


def test_numbers_with_a_typeset_minus_are_refused() -> None:
    found = refused_form([*(f"{one}.5" for one in MANY), *(f"\u2212{one}.5" for one in MANY)])
    assert found is not None and found.kind.startswith("numbers with signs") and found.example == "\u2212100.5"
