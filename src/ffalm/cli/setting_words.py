"""Settings of dataclasses as facts: their types and defaults in words. Nothing here imports torch."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

SETTING_HEADS = ("setting", "takes", "default", "meaning")


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    takes: str  # its type in words
    default: Any
    help: str = ""
    flag: str | None = None  # the command line flag that sets it, if there is one of its own
    required: bool = False

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The cells of a table under `SETTING_HEADS`."""
        return self.name, self.takes, self.shown_default, self.help

    @property
    def shown_default(self) -> str:
        """The default as a person would type it."""
        if self.required:
            return "needed"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "none" if self.default in (None, []) else str(self.default)


def settings_of(cls: Any, without: Collection[str] = ()) -> tuple[Setting, ...]:
    """The fields of a settings dataclass."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # annotations of a user's class may name what its module does not hold
        hints = {}
    return tuple(
        _setting(one, hints.get(one.name, one.type)) for one in dataclasses.fields(cls) if one.name not in without
    )


def _setting(one: dataclasses.Field[Any], hint: Any) -> Setting:
    missing = dataclasses.MISSING
    made = one.default_factory() if one.default_factory is not missing else one.default
    required, help = made is missing, one.metadata.get("help")
    flag = f"--{(one.metadata.get('flag') or one.name).replace('_', '-')}" if help else None
    default = None if required else list(made) if isinstance(made, tuple) else made
    return Setting(one.name, kind_of(hint), default, help or one.metadata.get("about", ""), flag, required)


def kind_of(hint: Any) -> str:
    """The type of a setting, in words."""
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, arguments))
    if typing.get_origin(hint) is tuple:
        return f"list of {kind_of(arguments[0])}"
    if arguments:
        anything = {str, int, float, bool}.issubset(arguments)
        kinds = ["value"] if anything else [kind_of(one) for one in arguments if one is not type(None)]
        return " or ".join([*kinds, "none"] if type(None) in arguments else kinds)
    return words.get(hint, str(hint))
