"""Whether this process may take the memory that torch and numpy need to be imported.

Where it may not (`ulimit -v`, `ulimit -d`), their libraries end the process by themselves: nothing can be caught, so
this is asked before anything is imported.
"""

from __future__ import annotations

import os

_MB = 2**20
#: MB without threads, and of each core, by limit: measured with torch 2.13 on two cores, where a small study took
#: 1,060 to 1,200 MB of addresses and 320 to 340 MB of data. Above it, what is missing is a `MemoryError`.
_NEEDED = {"RLIMIT_AS": (1000, 100, "ulimit -v"), "RLIMIT_DATA": (320, 32, "ulimit -d")}


def refusal() -> str | None:
    """One sentence where a limit of this process is too low for anything to be computed."""
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
