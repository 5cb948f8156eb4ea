"""Mistakes in the class of a user's algorithm that show before it runs.

Without these checks a setting would not be read, a hook would fail in a call of ours, and a property that lacks its
decorator would count as true: a method is.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from ffalm.algorithms.contract import Algorithm
from ffalm.errors import UserError, require


def check_class(cls: type[Algorithm]) -> None:
    """Refuse settings of a class that is no dataclass, and hooks that cannot be called or read as ours are."""
    _check_settings(cls)
    for name, ours in vars(Algorithm).items():
        own = inspect.getattr_static(cls, name)
        if not name.startswith("_") and own is not ours:
            _check_hook(f"`{name}` of {cls.title}", ours, own)


def _check_settings(cls: type[Algorithm]) -> None:
    """A class without the decorator has the fields of its parent alone."""
    known = {one.name for one in fields(cls)} | set(dir(Algorithm))
    for base in (one for one in cls.__mro__ if issubclass(one, Algorithm)):
        annotated = {name: str(kind) for name, kind in inspect.get_annotations(base).items() if name not in known}
        lost = [name for name, kind in annotated.items()
                if not name.startswith("_") and "ClassVar" not in kind and "InitVar" not in kind]  # fmt: skip
        require(
            not lost,
            f"The algorithm class {base.__name__} has settings ({', '.join(lost)}) and is no dataclass: put "
            "@dataclass(frozen=True) directly above the class, below @ffalm.register.",
        )


def _check_hook(hook: str, ours: Any, own: Any) -> None:
    if isinstance(ours, property):
        require(not inspect.isfunction(own), f"{hook} is a property: put @property above it.")
    elif isinstance(ours, classmethod):
        require(not inspect.isfunction(own), f"{hook} is a class method: put @classmethod above it.")
    elif inspect.isfunction(ours):
        require(not isinstance(own, property), f"{hook} is a method: remove @property.")
        if inspect.isfunction(own):
            _check_parameters(hook, ours, own)


def _check_parameters(hook: str, ours: Any, own: Any) -> None:
    """Hooks are called with values in our order; a hook of one's own may name them otherwise."""
    asked, taken = inspect.signature(ours).parameters, inspect.signature(own)
    try:
        taken.bind(*asked)
    except TypeError:
        raise UserError(
            f"{hook} takes ({', '.join(taken.parameters)}), and it is called with ({', '.join(asked)})."
        ) from None
