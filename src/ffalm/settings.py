"""Building a frozen dataclass of settings from names and values that a person typed.

Settings check their own values in `__post_init__`; this checks their names and types, so that a typing error in a
TOML file or a flag is answered with the nearest right name instead of a traceback.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union

from ffalm.errors import UserError, unknown

T = TypeVar("T")


def build(cls: type[T], settings: Mapping[str, Any], what: str) -> T:
    """An instance of a settings dataclass; unknown names and values of the wrong type are the user's to mend."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    values = {}
    for name, value in settings.items():
        if name not in fields:
            raise unknown(f"setting of {what}", name, fields)
        values[name] = _fitted(value, hints[name], f"The setting {name!r} of {what}")
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"The {what} needs the setting{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return cls(**values)


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others on top."""
    result = dict(base)
    for name, value in top.items():
        below = result.get(name)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def _fitted(value: Any, hint: Any, what: str) -> Any:
    """The value as its type hint wants it (an int for a float, a list for a tuple), or a `UserError`."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        options = typing.get_args(hint)
        if type(None) in options and (value is None or (value == "none" and str not in options)):
            return None  # TOML has no null, so files and flags say "none"
        for option in options:
            if option is type(None):
                continue
            try:
                return _fitted(value, option, what)
            except UserError as error:
                last = error
        raise last
    if origin is Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1, cutoff=0.5)
        hint = f": did you mean {near[0]!r}?" if near else "."
        raise UserError(f"{what} must be one of {', '.join(map(str, choices))}; got {value!r}{hint}")
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        alone = str if typing.get_origin(inner) is None else str | int | float  # for lists of any kind of value
        if isinstance(value, alone):
            value = [value]  # one name alone needs no brackets
        if isinstance(value, list | tuple):
            return tuple(_fitted(item, inner, what) for item in value)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return value
    if hint is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    if isinstance(hint, type) and hint not in (bool, str, int, float) and isinstance(value, hint):
        return value
    name = "list" if origin is tuple else getattr(origin or hint, "__name__", str(hint))
    raise UserError(f"{what} must be of type {name}; got {value!r}.")
