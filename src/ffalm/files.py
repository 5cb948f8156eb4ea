"""Atomic writes: a reader finds the old file or the new one, even after a kill, and never half of one; and JSON."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write beside and rename into place; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def write_private(path: Path, content: bytes) -> None:
    """The same for a secret: only its owner may read the file, at every instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    beside.replace(path)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
