"""Targets as users write them."""

from __future__ import annotations

import math

import pytest

from ffalm.errors import UserError
from ffalm.targets import Bound, Target


def test_a_target_is_read_from_its_text_and_written_again() -> None:
    target = Target.parse(" dpd<=5% ,impact_ratio >= 0.8")
    assert target.bounds == (Bound("dpd", 0.05), Bound("impact_ratio", 0.8))
    assert str(target) == "dpd <= 0.05, impact_ratio >= 0.8"
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dpd", "is not understood"),
        ("", "is not understood"),
        ("dpt <= 0.1", "did you mean 'dpd'"),
        ("dpd >= 0.1", "written with <="),
        ("impact_ratio <= 0.8", "written with >="),
        ("dpd <= 5", "a fraction from 0 to 1"),
        ("dpd <= -0.1", "a fraction from 0 to 1"),
        ("dpd <= 1e", "not a number"),
        ("dpd <= 0.1, dpd <= 0.2", "twice"),
        ("accuracy <= 0.1", "no metric of a target"),
    ],
)
def test_what_is_no_target_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Target.parse(text)


def test_a_gap_that_equals_its_bound_meets_it_and_an_undefined_one_does_not() -> None:
    target = Target.parse("dpd <= 0.3, impact_ratio >= 0.8")
    assert target.meets({"dpd": 0.1 + 0.2, "impact_ratio": 0.8})
    assert not target.meets({"dpd": 0.301, "impact_ratio": 0.8})
    assert not target.meets({"dpd": math.nan, "impact_ratio": 0.9})
    assert target.excess({"dpd": 0.35, "impact_ratio": 0.7}) == pytest.approx(0.1)
    assert target.excess({"dpd": 0.35}) == math.inf


def test_metrics_that_are_no_dict_are_refused() -> None:
    for asked in (Target.parse("dpd <= 0.1").meets, Target.parse("dpd <= 0.1").excess):
        with pytest.raises(UserError, match="a dict of numbers by name"):
            asked(0.05)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="metric dpd must be a number; got 'x'"):
            asked({"dpd": "x"})  # type: ignore[dict-item]
