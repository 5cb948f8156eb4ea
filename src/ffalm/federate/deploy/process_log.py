"""What a federation's processes log, without the control characters of a text that came from another machine.

An escape sequence in a site's name or message would otherwise act on the terminal of the operator who reads the log.
"""

from __future__ import annotations

import logging

_KEPT = "\n\t"


def without_control_characters(text: str) -> str:
    """The text with everything that moves a cursor or changes a terminal escaped; lines stay lines."""
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
    """Let no logger of this process, Flower's included, write control characters of a message."""
    logging.setLogRecordFactory(SafeRecord)


def start_log(pattern: str = "%(asctime)s %(message)s") -> None:
    """Write what this package says to standard error, which is the process's log file."""
    log = logging.getLogger("ffalm.federate")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(SafeFormatter(pattern))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
