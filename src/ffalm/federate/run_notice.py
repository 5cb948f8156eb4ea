"""The last that a site heard of a run: that it takes part, is left out, or that the run has stopped or ended.

For the site's own administrator, who sees no other sign of what the coordinator does: `ffalm federate status` shows it.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from ffalm.system.files import read_json, write_atomic

_FILE = "last_notice.json"


def keep_notice(folder: Path, message: str) -> None:
    """Keep a sentence, with the time."""
    write_atomic(
        folder / _FILE, json.dumps({"time": f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}", "message": message})
    )


def read_notice(folder: Path) -> dict[str, str] | None:
    """The last sentence and its time; None if there is none."""
    try:
        found = read_json(folder / _FILE)
        return {name: str(found[name]) for name in ("time", "message")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
