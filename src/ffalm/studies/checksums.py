"""Checksums of the files in a run folder, so that a damaged file is reported and never read as a result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.system.files import json_text, read_json

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
    """The content of a folder's checksum file; empty if there is none, as in folders of earlier versions."""
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
    """The first file that is missing or differs from its checksum; None if all match."""
    for name, expected in stored(folder).get("files", {}).items():
        try:
            if not (folder / name).is_file() or digest((folder / name).read_bytes()) != expected:
                return str(name)
        except (OSError, ValueError):
            return str(name)
    return None


def with_checksum(values: Mapping[str, Any]) -> str:
    """Values as JSON with a checksum of their own."""
    plain = json.loads(json_text(values))
    return json_text({**plain, _OWN: digest(json.dumps(plain, sort_keys=True))}, 2) + "\n"


def read_checked(file: Path) -> dict[str, Any]:
    """What `with_checksum` wrote; `OSError` or `ValueError` if it cannot be read or its checksum does not match."""
    values: dict[str, Any] = read_json(file)
    rest = {name: value for name, value in values.items() if name != _OWN}
    if _OWN in values and values[_OWN] != digest(json.dumps(rest, sort_keys=True)):  # federations of 0.9 have none
        raise ValueError("its checksum does not match")
    return rest
