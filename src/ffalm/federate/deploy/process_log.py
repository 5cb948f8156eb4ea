"""The logs of a federation's processes: without control characters, and in files of bounded size.

An escape sequence in a site's name or message, which came from another machine, would act on the terminal of the
operator who reads the log.

A process and all below it write to one file that they inherited open for appending, so it cannot be renamed: its
content is copied to FILE.1 and the file is truncated, as `copytruncate` of logrotate does. What is written between the
last read and the truncation is lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffalm.errors import require
from ffalm.federate.service_settings import Logs
from ffalm.settings import build

_KEPT = "\n\t"
_FILE, _BYTES, _KEEP = "FFALM_LOG_FILE", "FFALM_LOG_BYTES", "FFALM_LOG_KEEP"
_SECONDS = 30.0  # between two looks at the size
_CHUNK = 2**20


def without_control_characters(text: str) -> str:
    """The text with all control characters except line feeds and tabs escaped."""
    return "".join(letter if letter.isprintable() or letter in _KEPT else repr(letter)[1:-1] for letter in text)


class SafeFormatter(logging.Formatter):
    """Formats records, traces included, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """As text."""
        return without_control_characters(super().format(record))


class SafeRecord(logging.LogRecord):
    """A record whose message is safe whichever handler writes it."""

    def getMessage(self) -> str:  # noqa: N802
        """The message with its arguments."""
        return without_control_characters(super().getMessage())


def escape_records() -> None:
    """Escape control characters in the messages of all loggers of this process, including Flower's."""
    logging.setLogRecordFactory(SafeRecord)


def start_log(pattern: str = "%(asctime)s %(message)s") -> None:
    """Write this package's log to standard error, which is the process's log file."""
    log = logging.getLogger("ffalm.federate")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(SafeFormatter(pattern))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


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
        with open(file, "r+b") as log:
            if logs.keep:
                _keep_copy(log.fileno(), file, logs.keep)
            log.truncate(0)
        return True
    except OSError:  # a full disk must not end the process that logs
        return False


def environment_of(file: Path, logs: Logs) -> dict[str, str]:
    """Environment variables by which a process rotates its own log."""
    return {_FILE: str(file), _BYTES: str(logs.max_megabytes), _KEEP: str(logs.keep)}


def keep_rotating(seconds: float = _SECONDS) -> threading.Event:
    """Rotate this process's log when it is too large, until the process ends or the event is set."""
    ended = threading.Event()
    if _FILE not in os.environ:
        return ended
    file, logs = Path(os.environ[_FILE]), Logs(float(os.environ[_BYTES]), int(os.environ[_KEEP]))

    def look() -> None:
        while not ended.wait(seconds):
            rotate(file, logs)

    threading.Thread(target=look, name="log rotation", daemon=True).start()
    return ended


def _keep_copy(log: int, file: Path, keep: int) -> None:
    """Copy a log to FILE.1 and renumber older ones, once the copy is complete: the disk may be full."""
    whole = _numbered(file, 0)
    try:
        _copy(log, whole)
        for number in range(keep - 1, -1, -1):
            if _numbered(file, number).exists():
                _numbered(file, number).replace(_numbered(file, number + 1))
    finally:
        whole.unlink(missing_ok=True)


def _copy(log: int, target: Path) -> None:
    with open(target, "wb") as copy:
        while chunk := os.read(log, _CHUNK):
            copy.write(chunk)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")
