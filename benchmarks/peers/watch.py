"""Run a command and watch the memory of all processes that it starts; none of them outlives the call."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from work import descendants

SUBREAPER = 36  # prctl: orphans below this process become its children, so that none escapes
EVERY = 0.2  # seconds between two looks at memory
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Watched:
    """What was seen from outside."""

    began: float  # monotonic seconds
    seconds: float  # from start to exit
    rss_mb: float  # peak of the sum over the processes; memory that they share counts in each
    pss_mb: float  # the same with shared memory divided among those who share it; looked at every tenth time


def watch(command: list[str], environment: dict[str, str], cores: set[int], timeout: float = 600) -> Watched:
    """Run to the end on these cores; raises with the end of the output where the command fails."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before = set(descendants(os.getpid()))
    began = time.monotonic()
    rss, pss, looks = 0.0, 0.0, 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, sorted(cores))), *command],
            env=environment, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None:
                if time.monotonic() - began > timeout:
                    raise TimeoutError(f"{' '.join(command)} took more than {timeout:.0f} s")
                own = [pid for pid in descendants(os.getpid()) if pid not in before]
                rss = max(rss, sum(_rss(pid) for pid in own))
                if looks % 10 == 9:
                    pss = max(pss, sum(_pss(pid) for pid in own))
                looks += 1
                time.sleep(EVERY)
            seconds = time.monotonic() - began
        finally:
            _end([pid for pid in descendants(os.getpid()) if pid not in before])
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{said.read()[-4000:]}")
    return Watched(began, seconds, rss, pss)


def _rss(pid: int) -> float:
    """Memory of a process in MB, shared or not; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB
    except OSError:
        return 0.0


def _pss(pid: int) -> float:
    """Its fair share in MB. The kernel walks all pages for it, so a close watch would slow down what it watches."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def _end(left: list[int]) -> None:
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for pid in left:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            continue  # somebody below reaped it
