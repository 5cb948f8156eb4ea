"""The versions of ffalm on the other side, from `hello`, for `ffalm federate doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ffalm.engines.remote.message import printable
from ffalm.system.files import read_json, write_atomic

_FILE = "versions.json"
_LONGEST = 40


def keep_versions(folder: Path, versions: Mapping[str, str]) -> None:
    """Keep the versions that the others reported."""
    now = read_versions(folder)
    new = {**now, **{name: printable(version)[:_LONGEST] for name, version in versions.items()}}
    if new != now:
        write_atomic(folder / _FILE, json.dumps(new, indent=2) + "\n")


def read_versions(folder: Path) -> dict[str, str]:
    """The versions by name; empty if none were reported."""
    try:
        found = read_json(folder / _FILE)
        return {str(name): str(version) for name, version in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
