"""The limits of this process: whether torch and numpy may take the memory that they need, and how many files it opens.

Where memory is limited too much (`ulimit -v`, `ulimit -d`), their libraries end the process by themselves: nothing can
be caught, so this is asked before anything is imported.
"""

from __future__ import annotations

import os
from contextlib import suppress

_MB = 2**20
#: MB without threads, and of each core, by limit: measured with torch 2.13 on two cores, where a small study took
#: 1,060 to 1,200 MB of addresses and 320 to 340 MB of data. Above it, what is missing is a `MemoryError`.
_NEEDED = {"RLIMIT_AS": (1000, 100, "ulimit -v"), "RLIMIT_DATA": (320, 32, "ulimit -d")}

_OPEN_FILES = 4096  # a study holds a lock for each of the runs that are computed together


def allow_open_files() -> None:
    """Let this process and its workers open a few thousand files if possible; the default of macOS is 256."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the kernel may have a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def refusal() -> str | None:
    """A sentence if a limit of this process is too low to compute anything."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return None
    for kind, (base, of_a_core, command) in _NEEDED.items():
        needed = (base + of_a_core * (os.cpu_count() or 1)) * _MB
        most = resource.getrlimit(getattr(resource, kind))[0]
        if most != resource.RLIM_INFINITY and most < needed:
            return f"Memory is limited to {most // _MB} MB here, and {needed // _MB} MB are needed: raise `{command}`."
    return None
