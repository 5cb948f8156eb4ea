"""The processes of this machine that belong to a folder, found by a variable of their environment."""

from __future__ import annotations

from contextlib import suppress

import psutil

#: The environment variable that says which folder a process belongs to.
MARK = "FFALM_FEDERATE"


def mark_of(process: psutil.Process | None) -> str | None:
    """The folder's mark of a process; None where it has none, has ended, or does not let us read its environment."""
    with suppress(psutil.Error, OSError):
        return None if process is None or not lives(process) else process.environ().get(MARK)
    return None


def find(pid: int) -> psutil.Process | None:
    """The process of this number."""
    with suppress(psutil.Error, ValueError, OverflowError):
        return psutil.Process(pid)
    return None


def lives(process: psutil.Process) -> bool:
    """Whether this very process, not a later one of the same number, still runs."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def family(mark: str) -> set[psutil.Process]:
    """All processes with this mark and their descendants, since some of Flower's hide their environment."""
    marked = {process for process in psutil.process_iter() if mark_of(process) == mark}
    found = set(marked)
    for process in marked:
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return {process for process in found if lives(process)}
