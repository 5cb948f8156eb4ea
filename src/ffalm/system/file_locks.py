"""Locks on open files, which the operating system releases when their holder ends, even if it is killed.

`flock` on Linux and macOS; on Windows a lock on the file's first byte.
"""

from __future__ import annotations

import sys
import time
from typing import IO, Any

_SECONDS_BETWEEN_TRIES = 0.1

if sys.platform == "win32":
    import msvcrt

    def try_lock(file: IO[Any]) -> bool:
        """Lock a file for this process; False if another holds it."""
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
else:
    import fcntl

    def try_lock(file: IO[Any]) -> bool:
        """Lock a file for this process; False if another holds it, OSError if the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def wait_for_lock(file: IO[Any], seconds: float | None = None) -> bool:
    """Lock a file once nobody else holds it; False if that takes longer than this many seconds."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not try_lock(file):
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(_SECONDS_BETWEEN_TRIES)
    return True
