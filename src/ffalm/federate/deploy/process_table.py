"""The processes of this machine, as far as one user may look at them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: The variable of the environment by which a process says which folder it belongs to.
MARK = "FFALM_FEDERATE"


@dataclass(frozen=True)
class ProcessInfo:
    """A living process. With the moment it began, its number means this process and no later one."""

    pid: int
    parent: int
    began: str
    mark: str | None  # None where it has none, or does not let itself be looked at


def everybody() -> dict[int, ProcessInfo]:
    """Every living process by its number."""
    if sys.platform == "linux":
        seen = [one(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    else:
        seen = _listed("-A")
    return {process.pid: process for process in seen if process is not None}


def one(pid: int) -> ProcessInfo | None:
    """The living process of this number."""
    if sys.platform != "linux":
        return next(iter(_listed("-p", str(pid))), None)
    try:
        # The name in brackets may hold anything; after it come the state, the parent and, later, the start.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        variables = []
    return ProcessInfo(pid, int(fields[1]), fields[19], _mark_in(variables))


def family(mark: str) -> set[ProcessInfo]:
    """All processes with this mark and all below them, since some of Flower's do not let themselves be looked at."""
    all_of_them = everybody()
    found = {process for process in all_of_them.values() if process.mark == mark}
    while True:
        numbers = {process.pid for process in found}
        below = {process for process in all_of_them.values() if process.parent in numbers} - found
        if not below:
            return found
        found |= below


def _listed(*which: str) -> list[ProcessInfo]:
    """Processes as `ps` lists them, where there is no /proc."""
    columns = "pid=,ppid=,stat=,lstart=,command="
    listed = subprocess.run(["ps", "eww", "-o", columns, *which], capture_output=True, text=True, check=False)
    rows = [line.split() for line in listed.stdout.splitlines() if line.strip()]
    return [
        ProcessInfo(int(row[0]), int(row[1]), " ".join(row[3:8]), _mark_in(row[8:]))
        for row in rows
        if row[2][0] not in "ZX"
    ]


def _mark_in(variables: Sequence[str]) -> str | None:
    return next((text.partition("=")[2] for text in variables if text.startswith(f"{MARK}=")), None)
