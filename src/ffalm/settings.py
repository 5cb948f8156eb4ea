"""Settings are frozen dataclasses. `build` makes one from names and values that a user typed; `to_plain` undoes it.

Settings check their own values in `__post_init__`; `build` checks names and types, so that a typing error in a TOML
file, a flag or a keyword is answered with the nearest known name instead of a traceback.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import operator
import string
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union

from ffalm.errors import UserError, short_repr, unknown

T = TypeVar("T")
_LARGEST = 2**63 - 1
#: The limits of a setting's range: whether a number is within one, and how a message says so.
_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "{} or more"),
    "above": (operator.gt, "above {}"),
    "below": (operator.lt, "below {}"),
    "most": (operator.le, "at most {}"),
}

#: The types of a class's fields; evaluating the annotations takes longer than building an instance.
_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


def build(cls: type[T], settings: Mapping[str, Any], what: str) -> T:
    """An instance of a settings dataclass; unknown names and values of the wrong type are `UserError`s."""
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    values = {}
    for name, value in settings.items():
        if name not in fields:
            raise unknown(f"setting of {what}", name, fields)
        nested = _nested(value, hints[name])
        values[name] = (
            _fitted(value, hints[name], f"The setting {name!r} of {what}")
            if nested is None
            else (build(nested, {key: value[key] for key in value if key != "source"}, name))
        )
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"The {what} needs the setting{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    made = cls(**values)
    check_ranges(made, what)
    return made


def to_plain(settings: Any) -> dict[str, Any]:
    """The inverse of `build`: every field by its name, so that later defaults change nothing.

    A class that is chosen by name puts its `source` or `name` first, and one with a form of its own defines `to_plain`.
    A text that is None is left out, since TOML has no null and "none" would be a text too.
    """
    if hasattr(settings, "to_plain"):
        own: dict[str, Any] = settings.to_plain()
        return own
    hints = _hints(type(settings))
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    tag = next((key for key in ("source", "name") if key not in values and hasattr(settings, key)), None)
    return {
        **({} if tag is None else {tag: getattr(settings, tag)}),
        **{
            name: to_plain(value) if dataclasses.is_dataclass(value) else value
            for name, value in values.items()
            if value is not None or str not in typing.get_args(hints[name])
        },
    }


def typed(cls: type[T]) -> type[T]:
    """Class decorator for settings that users also make in Python: their values are checked as in `build`."""
    original: Any = cls.__init__
    signature = inspect.signature(original)
    own = [name for name in signature.parameters if name != "self"]

    @functools.wraps(original)
    def checked(self: T, *arguments: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in signature.parameters:
                raise unknown(f"setting of {getattr(type(self), 'title', type(self).__name__)}", name, own)
        given = signature.bind(self, *arguments, **keywords)
        with suppress(NameError):  # annotations of a user's class may name what its module does not hold
            hints, what = _hints(type(self)), getattr(type(self), "title", type(self).__name__)
            for name in list(given.arguments)[1:]:
                given.arguments[name] = _fitted(given.arguments[name], hints[name], f"The setting {name!r} of {what}")
        original(*given.args, **given.kwargs)
        check_ranges(self)

    cls.__init__ = checked  # type: ignore[method-assign, assignment]
    return cls


def flag(help: str, panel: str, name: str | None = None, **limits: float) -> dict[str, Any]:
    """Metadata of a dataclass field that is also a command line flag, under its own name unless another is given.

    `limits` are its range (see `check_ranges`). A setting without a flag is explained by the metadata "about".
    """
    return {"help": help, "panel": panel, "flag": name, **limits}


def setting(default: Any, help: str, **limits: float) -> Any:
    """A dataclass field with a sentence on its meaning, which is also the help of its flag, and its range."""
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def described(about: str, default: Any = dataclasses.MISSING, **limits: float) -> Any:
    """A dataclass field without a flag: a sentence on its meaning, its default and range."""
    return dataclasses.field(default=default, metadata={"about": about, **limits})


def check_ranges(settings: Any, what: str | None = None) -> None:
    """Refuse numbers that are not finite or outside the range that their field's metadata gives; None has no range.

    A range is any of the limits "least", "above", "below" and "most"; of a tuple it is that of each number.
    """
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        for name, (within, words) in _LIMITS.items():
            limit = one.metadata.get(name)
            if limit is None or all(_is_finite(number) and within(number, limit) for number in numbers):
                continue
            what = what or getattr(settings, "title", type(settings).__name__)
            allowed = words.format(f"{limit:,}" if isinstance(limit, int) else f"{limit:g}")
            raise UserError(f"The setting {one.name!r} of {what} must be {allowed}; got {short_repr(value)}.")


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and -math.inf < value < math.inf  # type: ignore[operator]


def with_keywords(*classes: type) -> Callable[[T], T]:
    """Decorator: show the fields of these dataclasses in the signature of a function that takes them as **keywords.

    A field that is itself one of these dataclasses is spelled out by that one's fields.
    """

    def decorate(function: T) -> T:
        own = inspect.signature(function)  # type: ignore[arg-type]
        shown = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        shown += [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for cls in classes
            for field in dataclasses.fields(cls)
            if field.type not in [one.__name__ for one in classes]
        ]
        function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def number_text(value: float) -> str:
    """A number as part of a name, with six digits if these are exact, else with all digits."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, overridden by others."""
    result = dict(base)
    for name, value in top.items():
        below = result.get(name)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def _nested(value: Any, hint: Any) -> type[Any] | None:
    """The dataclass that nested settings are for; if the hint allows several, `source` says which."""
    if not isinstance(value, Mapping):
        return None
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds: list[Any] = [kind for kind in options if dataclasses.is_dataclass(kind)]
    return next((kind for kind in kinds if getattr(kind, "source", None) == value.get("source")), None)


def _converted(value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (OverflowError, ValueError, TypeError):
        return None


def _fitted(value: Any, hint: Any, what: str) -> Any:
    """The value converted to its type hint (an int to a float, a list to a tuple), or a `UserError`."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        options = typing.get_args(hint)
        if type(None) in options and (
            value is None or (isinstance(value, str) and value == "none" and str not in options)
        ):
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
        if isinstance(value, str | int | float) and value in choices:
            return value
        typed = value[:100] if isinstance(value, str) else short_repr(value)
        near = difflib.get_close_matches(typed, [str(choice) for choice in choices], n=1, cutoff=0.5)
        hint = f": did you mean {near[0]!r}?" if near else "."
        raise UserError(f"{what} must be one of {', '.join(map(str, choices))}; got {short_repr(value)}{hint}")
    if origin is tuple:
        inner, *others = typing.get_args(hint)
        alone = str if typing.get_origin(inner) is None else str | int | float  # for lists of any kind of value
        if isinstance(value, alone):
            value = [value]  # one name alone needs no brackets
        if isinstance(value, list | tuple) and (Ellipsis in others or len(value) == 1 + len(others)):
            return tuple(_fitted(item, inner, what) for item in value)
    if origin is dict and isinstance(value, Mapping):
        key, inner = typing.get_args(hint)
        with suppress(ValueError):
            return {key(name): _fitted(item, inner, what) for name, item in value.items()}  # JSON's names are texts
    if hint is bytes and isinstance(value, str) and len(value) % 2 == 0 and set(value) <= set(string.hexdigits):
        return bytes.fromhex(value)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return value
    kind = {int: Integral, float: Real}.get(hint)
    if kind is not None and isinstance(value, kind) and not isinstance(value, bool):
        number = _converted(value, hint)
        if number is None or (isinstance(number, int) and abs(number) > _LARGEST):
            raise UserError(f"{what} must be a number of at most 19 digits; got {short_repr(value)}.")
        return number
    if hint is str and isinstance(value, str):
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UserError(f"{what} must be UTF-8 text without NUL characters; got {short_repr(value)}.")
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(hint, type) and hint not in (bool, str, int, float) and isinstance(value, hint):
        return value
    name = "list" if origin is tuple else getattr(origin or hint, "__name__", str(hint))
    raise UserError(f"{what} must be of type {name}; got {short_repr(value)}.")
