"""Classes of a user's algorithm whose mistakes show when they are registered."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

import pytest

import ffalm
from ffalm.algorithms.class_checks import check_class
from ffalm.errors import UserError


def mine(**body: Any) -> type[ffalm.Algorithm]:
    cls: type[ffalm.Algorithm] = type("Mine", (ffalm.Algorithm,), {"name": "mine", "title": "Mine", **body})
    return cls


def registered(cls: type[ffalm.Algorithm]) -> str:
    with pytest.raises(UserError) as refused:
        ffalm.register(cls)
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"objective": lambda self, batch: batch.losses.mean(-1)},
            "`objective` of Mine takes (self, batch), and it is called with (self, batch, state)",
        ),
        ({"project": lambda state: state}, "`project` of Mine takes (state), and it is called with (self, state)"),
        ({"separable": lambda self: False}, "`separable` of Mine is a property: put @property above it"),
        ({"objective": property(lambda self: 0)}, "`objective` of Mine is a method: remove @property"),
        ({"presets": lambda self: {}}, "`presets` of Mine is a class method: put @classmethod above it"),
    ],
)
def test_a_hook_that_cannot_be_called_as_ours_is_refused(body: dict[str, Any], told: str) -> None:
    """A method in the place of a property counts as true: secure aggregation would be used without being possible."""
    assert told in registered(mine(**body))


def test_a_hook_may_name_its_parameters_otherwise_and_take_any_number() -> None:
    check_class(mine(objective=lambda s, b, st: 0, project=lambda *given: given[-1], measure=ffalm.Measure.TRAINED))


def test_settings_of_a_class_that_is_no_dataclass_are_refused() -> None:
    """They could not be set, and a default made by `setting` would not be a number."""

    class Plain(ffalm.Algorithm):
        name, title = "plain", "Plain"
        table: ClassVar[dict[str, int]] = {}
        strength: float = 1.0

    with pytest.raises(UserError, match=re.escape("Plain has settings (strength) and is no dataclass: put @dataclass")):
        check_class(Plain)
    check_class(dataclass(frozen=True)(Plain))


def test_a_field_that_only_the_constructor_takes_is_no_lost_setting() -> None:
    @dataclass(frozen=True)
    class Once(ffalm.Algorithm):
        name, title = "once", "Once"
        given: InitVar[int] = 0

    check_class(Once)


@pytest.mark.parametrize("cls", ffalm.algorithms().values(), ids=ffalm.algorithms())
def test_ours_keep_to_the_contract(cls: type[ffalm.Algorithm]) -> None:
    check_class(cls)
