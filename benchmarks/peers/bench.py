"""Measure simulators on one file of work, each in a process, and where it has one an environment, of its own."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watch import watch

from ffalm.system.quiet import QUIET

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
_FAIR = {
    **QUIET,
    "OMP_WAIT_POLICY": "PASSIVE",
    "RAY_worker_niceness": "0",  # Ray's actors would otherwise give way to everybody else's processes
}
ALGORITHMS = ("ffalm", "fedavg")


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
    algorithms: tuple[str, ...] = ALGORITHMS


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

    def label(self, case: Case) -> str:
        """How a table calls it: a peer by its name and version."""
        return self.name if case.environment else case.label


Runs = dict[tuple[str, Case], list[Figures]]
"""All runs of each case, by algorithm."""


class Bench:
    """Cases on one file of work."""

    def __init__(self, envs: Path, folder: Path) -> None:
        self._envs, self.folder = envs, folder
        self.work = folder / "work.npz"
        self.cores = os.sched_getaffinity(0)
        for sources in (SOURCE, HERE.parent):  # as pip did with the peers; PYTHONDONTWRITEBYTECODE may be set
            compileall.compile_dir(sources, quiet=1)

    def missing(self, case: Case) -> bool:
        """Whether a peer's environment is not there."""
        return not Path(self._python(case)).is_file()

    def export(self, study: str, rounds: int, *settings: str) -> None:
        """Write the work."""
        command = [sys.executable, str(HERE / "export.py"), str(self.work), "--study", study, "--rounds", str(rounds)]
        subprocess.run([*command, *settings], env=self.variables(len(self.cores)), check=True)

    def measure_all(self, cases: list[Case], algorithm: str, runs: Runs) -> None:
        """Run every case once that has the algorithm, and an environment, and keep what it took."""
        for case in cases:
            if algorithm in case.algorithms and not self.missing(case):
                runs.setdefault((algorithm, case), []).append(self.measure(case, algorithm))
                print(algorithm, case.label, case.threads, runs[algorithm, case][-1], flush=True)

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
        return {**os.environ, **_FAIR, **own, "PYTHONPATH": os.pathsep.join([str(HERE), str(SOURCE)])}

    def _python(self, case: Case) -> str:
        return str(self._envs / case.environment / "bin" / "python") if case.environment else sys.executable


def typical(runs: list[Figures]) -> Figures:
    """The median of the CPU time; of wall times the shortest, which others disturbed least; the peak of memory."""
    cpu = statistics.median(run.cpu_ms for run in runs)
    wall, start = (min(getattr(run, name) for run in runs) for name in ("wall_ms", "start_s"))
    rss, pss = (max(getattr(run, name) for run in runs) for name in ("rss_mb", "pss_mb"))
    return Figures(runs[0].name, cpu, wall, start, rss, pss, runs[0].scores)


def typical_of(algorithm: str, runs: Runs) -> dict[Case, Figures]:
    """The typical run of every case that an algorithm had."""
    return {case: typical(own) for (name, case), own in runs.items() if name == algorithm}


def left_out(bench: Bench, cases: list[Case]) -> list[str]:
    """A sentence for each case without an environment."""
    missing = dict.fromkeys(case.label for case in cases if bench.missing(case))
    return [f"Left out, its environment is missing: {label}." for label in missing]


def flags(about: str | None, rounds: int, repeats: int) -> argparse.ArgumentParser:
    """The flags that every comparison with peers has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the peers' environments")
    parser.add_argument("--rounds", type=int, default=rounds, help="at most 50: peers keep their learning rate")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--write", action="store_true", help="replace the tables in RESULTS.md")
    return parser
