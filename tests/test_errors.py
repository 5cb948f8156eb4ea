"""Messages are one line that can be printed, whatever a user's names and values hold."""

from __future__ import annotations

import pytest

from ffalm.errors import UserError, look_up, require_number, short_repr, unknown


def test_line_feeds_and_control_characters_are_escaped() -> None:
    assert str(UserError("There is no file a\nb\x1b[31m\udcff.")) == "There is no file a\\nb\\x1b[31m\\udcff."
    assert UserError("x", "a\nb").public == "a\\nb"


def test_long_values_are_cut_and_values_that_cannot_be_printed_are_named_by_their_type() -> None:
    assert len(short_repr("x" * 10_000)) < 110
    assert short_repr(10**5000) == "an object of type int"
    assert len(str(UserError("x" * 10_000))) < 2100


@pytest.mark.parametrize("name", [5, ["a"], {}, None, "b"])
def test_a_name_of_any_type_that_is_not_known_is_refused(name: object) -> None:
    with pytest.raises(UserError, match="There is no thing"):
        look_up("thing", name, {"a": 1})


def test_a_number_is_finite_and_nothing_else() -> None:
    assert require_number(3, "cost") == 3.0
    for given in (None, "3", True, float("nan"), float("inf"), 10**400, [1], 1j):
        with pytest.raises(UserError, match="The cost must be a number"):
            require_number(given, "cost")


def test_a_name_is_suggested_whatever_its_case() -> None:
    assert "did you mean 'ffalm'?" in str(unknown("algorithm", "FFALM", ["fedavg", "ffalm"]))


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("demographic_parity", ("dpd", "eod", "accuracy_parity"), "dpd"),
        ("demographic_parity", ("dp", "eo"), "dp"),
        ("equal_opportunity_difference", ("dpd", "eod"), "eod"),
        ("sensitive_features", ("label", "group"), "group"),
        ("group", ("group", "sensitive"), "group"),
    ],
)
def test_what_others_call_a_thing_is_taken_for_our_name_of_it(given: str, known: tuple[str, ...], meant: str) -> None:
    """The nearest spelling of demographic_parity is accuracy_parity, another metric."""
    assert f"did you mean {meant!r}?" in str(unknown("metric", given.upper(), known))


def test_nothing_is_offered_where_nothing_is_known() -> None:
    assert str(unknown("setting", "x", [])) == "There is no setting 'x': there are none."


def test_names_of_other_libraries_are_answered_with_ours() -> None:
    known = ("lr", "lr_step", "rounds", "clients")
    assert str(unknown("keyword", "learning_rate", known)) == "There is no keyword 'learning_rate': did you mean 'lr'?"
    assert "did you mean 'rounds'?" in str(unknown("keyword", "num_rounds", known))
    assert "did you mean 'sensitive'?" in str(unknown("setting", "group", ("root", "sensitive")))
    assert "did you mean 'step'?" in str(unknown("keyword", "steps", ("step", "size")))


def test_names_with_commas_are_listed_with_semicolons() -> None:
    assert str(unknown("cell", "x", ["b, c", "a"])) == "There is no cell 'x': choose one of a; b, c."
