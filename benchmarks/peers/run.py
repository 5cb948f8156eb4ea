"""The tabular study in ffalm's engines, a plain loop and other simulators: same rows, model and batches, one table.

    python benchmarks/peers/run.py --envs DIR [--write]

Each peer has an environment of its own in DIR: `pfl` (pfl, torch), `declearn` (declearn[torch,websockets]) and `flower`
(flwr[simulation], torch); a missing one is left out, and the table says so. Every case runs in a process of its own,
`--repeats` times in turn: the median of the CPU time counts, and the shortest of wall times, which a shared machine
disturbs. All run on one core but Flower, which has all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from watch import watch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from floor import Floor, floor
from results import machine, publish

HERE = Path(__file__).resolve().parent
TEN = [str(seed) for seed in range(10)]
METRICS = ("accuracy", "dpd", "eod")
QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    label: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # a folder of --envs; None is the one that runs this
    seeds: int = 1
    all_cores: bool = False
    algorithms: tuple[str, ...] = ("ffalm", "fedavg")


STACKED = Case("**stacked, 10 seeds**", "with_ffalm.py", ("--engine", "stacked", "--seeds", *TEN), seeds=10)
HALF = Case("stacked, 5 seeds", "with_ffalm.py", ("--engine", "stacked", "--seeds", *TEN[:5]), seeds=5)
STACKED_ALONE = Case("stacked, 1 seed", "with_ffalm.py", ("--engine", "stacked"))
CASES = [
    STACKED,
    HALF,
    STACKED_ALONE,
    Case("loop", "with_ffalm.py", ("--engine", "loop")),
    Case("plain loop", "with_ffalm.py", ("--engine", "plain")),
    Case("pfl", "with_pfl.py", environment="pfl"),
    Case("declearn", "with_declearn.py", environment="declearn", algorithms=("fedavg",)),
    Case("Flower simulation", "with_flower.py", environment="flower", all_cores=True),
]


@dataclass(frozen=True)
class Figures:
    """One run of one case; times are a round and seed, the first round left out."""

    name: str
    cpu_ms: float
    wall_ms: float
    start_s: float  # from the start of the process to the end of its first round
    rss_mb: float
    pss_mb: float
    scores: tuple[float, ...]


class Bench:
    """Cases on one file of work."""

    def __init__(self, envs: Path, folder: Path) -> None:
        self._envs, self._folder = envs, folder
        self.work = folder / "work.npz"
        self._cores = os.sched_getaffinity(0)

    def missing(self, case: Case) -> bool:
        """Whether a peer's environment is not there."""
        return not Path(self._python(case)).is_file()

    def export(self, rounds: int) -> None:
        """Write the work."""
        command = [sys.executable, str(HERE / "export.py"), str(self.work), "--rounds", str(rounds)]
        subprocess.run(command, env=self._variables(), check=True)

    def measure(self, case: Case, algorithm: str) -> Figures:
        """Run one case once."""
        ledger = self._folder / "ledger.json"
        cores = self._cores if case.all_cores else {max(self._cores)}
        command = [self._python(case), str(HERE / case.script), str(self.work), str(ledger), "--algorithm", algorithm]
        seen = watch([*command, *case.arguments], self._variables(), cores)
        found: dict[str, Any] = json.loads(ledger.read_text())
        rounds = found["rounds"]
        cpu, wall = (
            1e3 * (rounds[-1][kind] - rounds[0][kind]) / (len(rounds) - 1) / case.seeds for kind in ("cpu", "at")
        )
        last = tuple(rounds[-1][name] for name in METRICS)
        return Figures(found["peer"], cpu, wall, rounds[0]["at"] - seen.began, seen.rss_mb, seen.pss_mb, last)

    def study(self, algorithm: str, rounds: int) -> float:
        """Seconds that ten seeds take in one process a core, from start to exit."""
        cores = sorted(self._cores)
        began = time.monotonic()
        with ThreadPoolExecutor(len(cores)) as pool:
            waiting = [pool.submit(self._part, algorithm, rounds, core, place, len(cores))
                       for place, core in enumerate(cores)]  # fmt: skip
            for one in waiting:
                one.result()
        return time.monotonic() - began

    def _part(self, algorithm: str, rounds: int, core: int, place: int, parts: int) -> None:
        ledger = self._folder / f"ledger{place}.json"
        command = [sys.executable, str(HERE / "with_ffalm.py"), str(self.work), str(ledger), "--algorithm", algorithm]
        own = [*command, "--rounds", str(rounds), "--seeds", *TEN[place::parts]]
        subprocess.run(["taskset", "-c", str(core), *own], env=self._variables(), check=True)

    def _python(self, case: Case) -> str:
        return str(self._envs / case.environment / "bin" / "python") if case.environment else sys.executable

    def _variables(self) -> dict[str, str]:
        paths = os.pathsep.join([str(HERE), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
        return {**os.environ, **QUIET, "FLWR_HOME": str(self._folder / "flower"), "PYTHONPATH": paths}


def typical(runs: list[Figures]) -> Figures:
    """The median of the CPU time; of wall times the shortest, which others disturbed least; the peak of memory."""
    cpu = statistics.median(run.cpu_ms for run in runs)
    wall, start = (min(getattr(run, name) for run in runs) for name in ("wall_ms", "start_s"))
    rss, pss = (max(getattr(run, name) for run in runs) for name in ("rss_mb", "pss_mb"))
    return Figures(runs[0].name, cpu, wall, start, rss, pss, runs[0].scores)


def table(found: dict[Case, Figures], algorithm: str, beneath: Floor) -> str:
    """One algorithm's cases, each against the stacked engine with ten seeds."""
    lines = [
        "| simulator | CPU ms / round / seed | wall ms | CPU, times stacked | wall, times stacked | start s "
        "| peak MB | accuracy | DPD | EOD |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    base = found[STACKED]
    for case, one in found.items():
        label = one.name if case.environment else case.label
        shared = f" (PSS {one.pss_mb:.0f})" if case.all_cores else ""
        scores = " | ".join(f"{value:.5f}" for value in one.scores)
        lines.append(
            f"| {label}{', all cores' if case.all_cores else ''} | {one.cpu_ms:.1f} | {one.wall_ms:.1f} "
            f"| {one.cpu_ms / base.cpu_ms:.1f} | {one.wall_ms / base.wall_ms:.1f} | {one.start_s:.1f} "
            f"| {one.rss_mb:.0f}{shared} | {scores} |"
        )
    ms = beneath.ms(algorithm)
    lines.append(f"| dense floor | {ms:.1f} | {ms:.1f} | {ms / base.cpu_ms:.2f} | {ms / base.wall_ms:.2f} | | | | | |")
    return "\n".join(lines)


def studies(found: dict[Case, Figures], measured: float, rounds: int, cores: int) -> str:
    """Ten seeds of a whole study on all cores, from the start and the rounds of each; ours is measured too."""
    seconds: dict[str, float] = {}
    for case, one in found.items():
        each = one.start_s + (rounds - 1) * case.seeds * one.wall_ms / 1e3
        processes = 10 / case.seeds
        name = one.name if case.environment else case.label
        if case not in (STACKED, STACKED_ALONE):
            seconds[name] = each * (processes if case.all_cores else max(1, processes / cores))
    base = seconds[HALF.label]
    lines = ["| simulator | 10 seeds s | times stacked |", "|---|---|---|"]
    lines += [f"| {name} | {whole:.1f} | {whole / base:.1f} |" for name, whole in seconds.items()]
    return "\n".join([*lines, f"| stacked, measured | {measured:.1f} | {measured / base:.1f} |"])


def main() -> None:
    """Measure, print and perhaps publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the peers' environments")
    parser.add_argument("--rounds", type=int, default=12, help="at most 50: peers keep their learning rate")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", default=["ffalm", "fedavg"], choices=["ffalm", "fedavg"])
    parser.add_argument("--write", action="store_true", help="replace the tables in RESULTS.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(asked.envs.resolve(), Path(folder))
        bench.export(asked.rounds)
        with np.load(bench.work) as work:
            beneath = floor(len(work["y"]), len(work["test_y"]), work["x"].shape[1])
        left_out = [case for case in CASES if bench.missing(case)]
        runs: dict[tuple[str, Case], list[Figures]] = {}
        whole: dict[str, list[float]] = {}
        for _ in range(asked.repeats):
            for algorithm in asked.algorithms:
                for case in CASES:
                    if algorithm in case.algorithms and case not in left_out:
                        runs.setdefault((algorithm, case), []).append(bench.measure(case, algorithm))
                        print(algorithm, case.label, runs[algorithm, case][-1], flush=True)
                whole.setdefault(algorithm, []).append(bench.study(algorithm, 70))
    parts = [
        f"{machine()} `python benchmarks/peers/run.py --envs DIR`: {asked.rounds} rounds, {asked.repeats} runs each: "
        "median CPU time, shortest wall times, largest memory. One core, Flower all. "
        f"Floor: {beneath.ffalm_gflop:.2f} GFLOP a round of FFALM, {beneath.fedavg_gflop:.2f} of FedAvg, at "
        f"{beneath.gflops:.0f} GFLOP/s. Metrics are those of seed 0 after the last round."
    ]
    parts += [f"Left out, its environment is missing: {case.label}." for case in left_out]
    for algorithm in asked.algorithms:
        found = {case: typical(own) for (name, case), own in runs.items() if name == algorithm}
        parts += [f"**{algorithm}**", table(found, algorithm, beneath)]
        parts += [
            f"A whole study of {algorithm}: 70 rounds of 10 seeds, from start to exit, on all cores. Computed from the "
            "table, one process a core (Flower uses all by itself; stacked has 5 seeds a process); stacked also "
            "measured, the best of the repeats:",
            studies(found, min(whole[algorithm]), 70, os.cpu_count() or 1),
        ]
    body = "\n\n".join(parts)
    print(body)
    if asked.write:
        publish("The tabular study beside other simulators", body)


if __name__ == "__main__":
    main()
