"""TOML: reading files of users and of this package, writing, and changing values in a file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.errors import UserError, require
from ffalm.system.files import read_text, write_atomic


def read(path: Path, what: str = "file") -> dict[str, Any]:
    """The nested settings of a TOML file that a user named or may have changed."""
    text = read_text(path, what)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"The {what} {path} has lists or sections nested too deeply.") from None
    except ValueError as error:  # of TOML, or a number of thousands of digits
        raise UserError(f"The {what} {path} is not valid TOML: {str(error).rstrip('.')}.") from None


def dumps(settings: Mapping[str, Any]) -> str:
    """Nested settings as TOML text, plain values before sections; None is written as the string "none"."""
    return "\n".join(_lines(settings, ())).strip() + "\n"


def beside(module: str) -> dict[str, Any]:
    """The TOML file beside a module, with the module's name."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


def set_values(file: Path, values: Mapping[str, Any]) -> None:
    """Set plain values and lists that come before the first section; comments and all else stay as they are."""
    settings = read(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    top = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    place = 0
    for name in values:
        begin = next((number for number in range(top) if re.match(rf"\s*{name}\s*=", lines[number])), None)
        if begin is not None:
            end = _end_of_value(lines, begin, top)
            del lines[begin:end]
            top -= end - begin
            place = begin
    lines[place:place] = dumps(values).splitlines()
    text = "\n".join(lines) + "\n"
    wanted = tomllib.loads(dumps(values))
    names = ", ".join(values)
    require(
        _parsed(text) == {**settings, **wanted},
        f"{names} in {file} cannot be replaced: write each on a line of its own at the top, before the first section.",
    )
    write_atomic(file, text)


def _lines(settings: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(name)} = {_value(value)}" for name, value in settings.items() if not isinstance(value, Mapping)]
    for name, value in settings.items():
        if isinstance(value, Mapping):
            inner = (*path, name)
            body = _lines(value, inner)
            only_sections = value and all(isinstance(item, Mapping) for item in value.values())
            header = [] if only_sections else ["", f"[{'.'.join(map(_key, inner))}]"]
            lines += [*header, *body]
    return lines


def _key(name: str) -> str:
    plain = name and all(character.isalnum() or character in "-_" for character in name) and name.isascii()
    return name if plain else _string(name)


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return _string(str(value))


def _string(text: str) -> str:
    # JSON's escapes are TOML's too, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _end_of_value(lines: list[str], begin: int, top: int) -> int:
    """The line after a value, which may be a list over several lines."""
    for end in range(begin + 1, top + 1):
        if _parsed("\n".join(lines[begin:end])) is not None:
            return end
    return begin + 1


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
