"""Changing settings at the top of a TOML file that people edit: comments and everything else stay as they are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.errors import require
from ffalm.system import toml
from ffalm.system.files import write_whole


def set_values(file: Path, values: Mapping[str, Any]) -> None:
    """Set plain values and lists that come before the first section."""
    settings = toml.read(file)
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
    lines[place:place] = toml.dumps(values).splitlines()
    text = "\n".join(lines) + "\n"
    wanted = tomllib.loads(toml.dumps(values))
    names = ", ".join(values)
    require(
        _parsed(text) == {**settings, **wanted},
        f"{names} in {file} cannot be replaced: write each on a line of its own at the top, before the first section.",
    )
    write_whole(file, text)


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
