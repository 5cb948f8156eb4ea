"""Types and defaults of settings, in words."""

from __future__ import annotations

import typing
from typing import Any


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


def shown_default(value: Any) -> str:
    """A default as a person would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value == () else str(value)
