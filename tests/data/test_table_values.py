"""Values as people name them: a label or a group is found by its text, else by what it means."""

from __future__ import annotations

import pytest

from ffalm.data.table_values import canonical, place_of


@pytest.mark.parametrize(
    ("value", "form"),
    [
        *((1, "1"), ("1.0", "1"), (True, "1"), ("TRUE", "1"), ("Yes", "yes"), ("1e5", "100000"), ("2.50", "2.5")),
        ("\u0661", "1"),  # an Arabic 1
    ],
)
def test_values_of_one_meaning_have_one_normal_form(value: object, form: str) -> None:
    assert canonical(value) == form


def test_a_long_code_is_not_found_in_another_that_is_the_same_float() -> None:
    known = ("9007199254740992", "9007199254740994")
    assert place_of("9007199254740993", known) == -1
    assert place_of("9007199254740994.0", known) == 1
    assert place_of("9007199254740993.0", ("9007199254740992", "9007199254740993")) == 1
