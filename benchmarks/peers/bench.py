"""Measure simulators on one file of work, each in a process, and where it has one an environment, of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watch import watch

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's actors would otherwise give way to everybody else's processes
}


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    label: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # a folder of --envs; None is the one that runs this
    seeds: int = 1
    all_cores: bool = False
    threads: int = 1  # of torch in each process
    launcher: tuple[str, ...] = ()  # what Python runs before the script
    algorithms: tuple[str, ...] = ("ffalm", "fedavg")


@dataclass(frozen=True)
class Figures:
    """One run of one case; times are a round and seed, the first round left out."""

    name: str
    cpu_ms: float
    wall_ms: float
    start_s: float  # from the start of the process to the end of its first round
    rss_mb: float
    pss_mb: float
    scores: list[dict[str, float]]  # by round


class Bench:
    """Cases on one file of work."""

    def __init__(self, envs: Path, folder: Path) -> None:
        self._envs, self.folder = envs, folder
        self.work = folder / "work.npz"
        self.cores = os.sched_getaffinity(0)

    def missing(self, case: Case) -> bool:
        """Whether a peer's environment is not there."""
        return not Path(self._python(case)).is_file()

    def export(self, study: str, rounds: int, *settings: str) -> None:
        """Write the work."""
        command = [sys.executable, str(HERE / "export.py"), str(self.work), "--study", study, "--rounds", str(rounds)]
        subprocess.run([*command, *settings], env=self.variables(len(self.cores)), check=True)

    def measure(self, case: Case, algorithm: str) -> Figures:
        """Run one case once."""
        ledger = self.folder / "ledger.json"
        cores = self.cores if case.all_cores else {max(self.cores)}
        script = [self._python(case), *case.launcher, str(HERE / case.script)]
        command = [*script, str(self.work), str(ledger), "--algorithm", algorithm, *case.arguments]
        seen = watch(command, self.variables(case.threads), cores)
        found: dict[str, Any] = json.loads(ledger.read_text())
        first, last = found["rounds"][0], found["rounds"][-1]
        spans = (len(found["rounds"]) - 1) * case.seeds
        cpu, wall = (1e3 * (last[kind] - first[kind]) / spans for kind in ("cpu", "at"))
        scores = [{name: one[name] for name in one if name not in ("cpu", "at")} for one in found["rounds"]]
        return Figures(found["peer"], cpu, wall, first["at"] - seen.began, seen.rss_mb, seen.pss_mb, scores)

    def variables(self, threads: int = 1) -> dict[str, str]:
        """The environment of every process: no telemetry, few threads, and the checkout's own sources."""
        own = {"OMP_NUM_THREADS": str(threads), "FLWR_HOME": str(self.folder / "flower")}
        return {**os.environ, **QUIET, **own, "PYTHONPATH": os.pathsep.join([str(HERE), str(SOURCE)])}

    def _python(self, case: Case) -> str:
        return str(self._envs / case.environment / "bin" / "python") if case.environment else sys.executable


def typical(runs: list[Figures]) -> Figures:
    """The median of the CPU time; of wall times the shortest, which others disturbed least; the peak of memory."""
    cpu = statistics.median(run.cpu_ms for run in runs)
    wall, start = (min(getattr(run, name) for run in runs) for name in ("wall_ms", "start_s"))
    rss, pss = (max(getattr(run, name) for run in runs) for name in ("rss_mb", "pss_mb"))
    return Figures(runs[0].name, cpu, wall, start, rss, pss, runs[0].scores)
