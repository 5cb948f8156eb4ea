"""The registry of algorithms by name, built-in ones and users' own."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from ffalm.algorithms.class_checks import check_class
from ffalm.algorithms.contract import Algorithm
from ffalm.errors import UserError, look_up, require, short_repr
from ffalm.settings import typed

A = TypeVar("A", bound=Algorithm)

_OURS = "ffalm."  # tested, so not checked at every start of a command
_REGISTERED: dict[str, type[Algorithm]] = {}


def register(cls: type[A]) -> type[A]:
    """Class decorator: make an algorithm known by its `name` to `ffalm run`, `compare` and every engine."""
    known = isinstance(cls, type) and issubclass(cls, Algorithm)
    require(known, f"Only classes that extend `ffalm.Algorithm` can be registered; got {short_repr(cls)}.")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        raise UserError(f"The algorithm class {cls.__name__} needs a `name` to be registered under.")
    title = getattr(cls, "title", None)
    if not isinstance(title, str) or not title:
        raise UserError(f"The algorithm class {cls.__name__} needs a `title`, its name in tables.")
    taken = _REGISTERED.get(name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        owner = f"{taken.__module__}.{taken.__qualname__}"
        raise UserError(f"The name {name!r} already belongs to the algorithm {owner}: choose another.")
    if not cls.__module__.startswith(_OURS):
        check_class(cls)
    _REGISTERED[name] = typed(cls) if dataclasses.is_dataclass(cls) else cls
    return cls


def algorithms() -> dict[str, type[Algorithm]]:
    """Every registered algorithm by its name."""
    return dict(_REGISTERED)


def algorithm_class(name: str) -> type[Algorithm]:
    """The class registered under a name."""
    return look_up("algorithm", name, _REGISTERED)
