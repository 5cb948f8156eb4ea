"""The log of a site's processes."""

from __future__ import annotations

import logging


def start_log() -> None:
    """Write what this package says, with the time, to standard error, which is the site's log file."""
    log = logging.getLogger("ffalm.federate")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
