"""Log files of bounded size, to which several processes write.

A process and all below it write to one file that they inherited open for appending, so the file cannot be renamed under
them: its content is copied to FILE.1 and the file is cut to nothing, as `copytruncate` of logrotate does. What is
written in the instant between the last read and the cut is lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.errors import require
from ffalm.federate.service_settings import Logs
from ffalm.settings import build

_FILE, _BYTES, _KEEP = "FFALM_LOG_FILE", "FFALM_LOG_BYTES", "FFALM_LOG_KEEP"
_SECONDS = 30.0  # between two looks at the size
_CHUNK = 2**20


def logs_of(settings: Mapping[str, Any]) -> Logs:
    """The section [logs] of federation.toml or site.toml."""
    section = settings.get("logs", {})
    require(isinstance(section, dict), "The setting 'logs' must be a section, [logs].")
    return build(Logs, section, "logs")


def rotate(file: Path, logs: Logs) -> bool:
    """Rotate a log file that is too large; whether it was."""
    try:
        if not logs.most_bytes or file.stat().st_size <= logs.most_bytes:
            return False
        for number in range(logs.keep - 1, 0, -1):
            older = _numbered(file, number)
            if older.exists():
                older.replace(_numbered(file, number + 1))
        with open(file, "r+b") as log:
            if logs.keep:
                _copy(log.fileno(), _numbered(file, 1))
            log.truncate(0)
        return True
    except OSError:  # a full disk must not end the process that logs
        return False


def environment_of(file: Path, logs: Logs) -> dict[str, str]:
    """What a process is told, so that it can keep its own log within bounds."""
    return {_FILE: str(file), _BYTES: str(logs.max_megabytes), _KEEP: str(logs.keep)}


def keep_rotating(seconds: float = _SECONDS) -> threading.Event:
    """Look at the size of this process's log now and then, for as long as it lives or until the event is set."""
    ended = threading.Event()
    if _FILE not in os.environ:
        return ended
    file, logs = Path(os.environ[_FILE]), Logs(float(os.environ[_BYTES]), int(os.environ[_KEEP]))

    def look() -> None:
        while not ended.wait(seconds):
            rotate(file, logs)

    threading.Thread(target=look, name="log rotation", daemon=True).start()
    return ended


def _copy(log: int, target: Path) -> None:
    with open(target, "wb") as copy:
        while chunk := os.read(log, _CHUNK):
            copy.write(chunk)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")
