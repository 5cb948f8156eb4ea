"""Checksums of the files in a run folder: a damaged or truncated file is named, and never read as a result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.system.files import read_json

#: The file, in a folder, with the checksums of the others.
FILE = "checksums.json"
_OWN = "checksum"


def digest(content: bytes | str) -> str:
    """The checksum of a file's content."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def listing(contents: Mapping[str, bytes | str], **others: Any) -> str:
    """The text of a checksum file for these files; `others` are facts that go with them."""
    return json.dumps({"files": {name: digest(content) for name, content in contents.items()}, **others}, indent=2)


def stored(folder: Path) -> dict[str, Any]:
    """What the checksum file of a folder says; empty where there is none, as in folders of earlier versions."""
    if not (folder / FILE).exists():
        return {}
    try:
        found = read_json(folder / FILE)
        if isinstance(found, dict) and isinstance(found["files"], dict):
            return found
    except (OSError, ValueError, KeyError):
        pass
    return {"files": {FILE: ""}}


def damaged(folder: Path) -> str | None:
    """The first file that is missing or differs from its checksum; None where all fit."""
    for name, expected in stored(folder).get("files", {}).items():
        try:
            if not (folder / name).is_file() or digest((folder / name).read_bytes()) != expected:
                return str(name)
        except (OSError, ValueError):
            return str(name)
    return None


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values together with their checksum, for a file that is checked by itself."""
    return {**values, _OWN: digest(json.dumps(values, sort_keys=True))}


def unsealed(values: dict[str, Any]) -> dict[str, Any]:
    """The values without their checksum; a ValueError if it does not match. Earlier versions wrote none."""
    rest = {name: value for name, value in values.items() if name != _OWN}
    if _OWN in values and values[_OWN] != digest(json.dumps(rest, sort_keys=True)):
        raise ValueError("its checksum does not fit")
    return rest
