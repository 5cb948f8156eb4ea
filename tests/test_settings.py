"""Settings from names and values that a person typed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

import ffalm
from ffalm.errors import UserError
from ffalm.settings import build, to_plain, typed


@dataclass(frozen=True)
class Plan:
    kind: ClassVar[str] = "plan"

    rounds: int
    lr: float = 0.05
    clip: float | None = 1.0
    shuffle: bool = True
    name: str = "plain"
    mode: Literal["fast", "slow"] = "fast"
    widths: tuple[int, ...] = (64,)
    extra: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def test_values_of_the_right_type_are_taken() -> None:
    given: dict[str, Any] = {
        "rounds": 3, "lr": 0.5, "clip": 2.0, "shuffle": False, "name": "x", "mode": "slow", "widths": (1, 2),
    }  # fmt: skip
    assert build(Plan, given, "plan") == Plan(3, 0.5, 2.0, False, "x", "slow", (1, 2))


def test_what_is_left_out_has_its_default() -> None:
    assert build(Plan, {"rounds": 3}, "plan") == Plan(3)


def test_an_int_serves_for_a_float_and_becomes_one() -> None:
    plan = build(Plan, {"rounds": 3, "lr": 1, "clip": 2}, "plan")
    assert isinstance(plan.lr, float)
    assert isinstance(plan.clip, float)


def test_a_list_serves_for_a_tuple() -> None:
    assert build(Plan, {"rounds": 3, "widths": [8, 4]}, "plan").widths == (8, 4)


def test_one_name_alone_serves_for_a_list_of_names() -> None:
    assert build(Plan, {"rounds": 3, "names": "first name"}, "plan").names == ("first name",)


def test_none_is_taken_where_it_is_allowed_and_files_may_write_it_out() -> None:
    assert build(Plan, {"rounds": 3, "clip": None}, "plan").clip is None
    assert build(Plan, {"rounds": 3, "clip": "none"}, "plan").clip is None


@pytest.mark.parametrize(
    ("typed", "meant"), [("ronds", "rounds"), ("learning_rte", None), ("shufle", "shuffle"), ("mod", "mode")]
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(typed: str, meant: str | None) -> None:
    with pytest.raises(UserError) as refused:
        build(Plan, {"rounds": 3, typed: 1}, "plan")
    expected = f"did you mean {meant!r}?" if meant else "choose one of"
    assert expected in str(refused.value)
    assert repr(typed) in str(refused.value)
    assert "plan" in str(refused.value)


def test_a_class_variable_is_no_setting() -> None:
    with pytest.raises(UserError):
        build(Plan, {"rounds": 3, "kind": "other"}, "plan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 2.5),
        ("rounds", "3"),
        ("rounds", True),
        ("rounds", None),
        ("lr", "fast"),
        ("lr", True),
        ("lr", None),
        ("clip", "tight"),
        ("shuffle", 1),
        ("shuffle", "yes"),
        ("name", 3),
        ("mode", "medium"),
        ("widths", [8, "x"]),
        ("widths", 8),
        ("widths", "88"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_name_and_itself(name: str, value: Any) -> None:
    with pytest.raises(UserError) as refused:
        build(Plan, {"rounds": 3, name: value}, "plan")
    assert repr(name) in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="fast, slow"):
        build(Plan, {"rounds": 3, "mode": "medium"}, "plan")


def test_a_setting_without_default_is_asked_for() -> None:
    with pytest.raises(UserError, match="needs the setting rounds"):
        build(Plan, {}, "plan")


def test_the_settings_own_checks_are_still_made() -> None:
    from ffalm.algorithms import FFALM
    from ffalm.engines import Training

    assert build(FFALM, {"penalty": 5}, "ffalm") == FFALM(penalty=5.0)
    with pytest.raises(UserError, match="'penalty'"):
        build(FFALM, {"penalty": -1}, "ffalm")
    with pytest.raises(UserError, match="'participation'"):
        build(Training, {"participation": 1.5}, "training")


@dataclass(frozen=True)
class Circle:
    source: ClassVar[str] = "circle"
    radius: float = 1.0


@dataclass(frozen=True)
class Square:
    source: ClassVar[str] = "square"
    side: float = 1.0


@dataclass(frozen=True)
class Drawing:
    plan: Plan
    shape: Circle | Square = Circle()
    keys: dict[int, bytes] = field(default_factory=dict)
    ends: tuple[str, str] = ("a", "b")


def test_nested_settings_come_back_from_their_plain_form() -> None:
    drawing = Drawing(Plan(3, widths=(1, 2)), Square(2.0), {4: b"\x01\xff"}, ("c", "d"))
    plain = json.loads(json.dumps(to_plain(drawing), default=bytes.hex))
    assert plain["shape"] == {"source": "square", "side": 2.0}
    assert build(Drawing, plain, "drawing") == drawing


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"plan": {"ronds": 3}}, "no setting of plan 'ronds'"),
        ({"shape": {"source": "hexagon"}}, "'shape' of drawing must be of type"),
        ({"ends": ["c"]}, "'ends' of drawing must be of type list"),
    ],
)
def test_a_mistake_in_nested_settings_is_told_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(Drawing, {"plan": {"rounds": 3}, **change}, "drawing")


def test_settings_made_in_python_are_checked_alike() -> None:
    @typed
    @dataclass(frozen=True)
    class Step:
        size: float = 1.0
        kind: Literal["a", "b"] = "a"

    Step.__annotations__ |= {"size": float, "kind": Literal["a", "b"]}
    assert Step(2) == Step(size=2.0)
    for wrong in ({"size": "x"}, {"kind": 3}, {"size": 10**400}):
        with pytest.raises(UserError, match="of Step must be"):
            Step(**wrong)


def test_an_unknown_keyword_in_python_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no setting of FFALM 'penalt': did you mean 'penalty'"):
        ffalm.FFALM(penalt=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", ["a\0b", "\udcff"])
def test_text_that_no_file_can_hold_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="UTF-8 text without NUL"):
        build(Plan, {"rounds": 1, "name": value}, "plan")
