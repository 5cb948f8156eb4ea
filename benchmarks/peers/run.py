"""The tabular study in ffalm's engines, a plain loop and other simulators: same rows, model and batches, one table.

    python benchmarks/peers/run.py --envs DIR [--write]

Each peer has an environment of its own in DIR: `pfl` (pfl, torch), `declearn` (declearn[torch,websockets]) and `flower`
(flwr[simulation], torch); a missing one is left out, and the table says so. Every case runs in a process of its own,
`--repeats` times in turn: the median of the CPU time counts, and the shortest of wall times, which a shared machine
disturbs. All run on one core but Flower, which has all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from bench import HERE, Bench, Case, Figures, Runs, flags, left_out, typical_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from floor import Floor, floor
from results import machine, show

TEN = [str(seed) for seed in range(10)]
METRICS = ("accuracy", "dpd", "eod")

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


def study(bench: Bench, algorithm: str, rounds: int) -> float:
    """Seconds that ten seeds take in one process a core, from start to exit."""
    cores = sorted(bench.cores)
    began = time.monotonic()
    with ThreadPoolExecutor(len(cores)) as pool:
        waiting = [pool.submit(_part, bench, algorithm, rounds, core, place, len(cores))
                   for place, core in enumerate(cores)]  # fmt: skip
        for one in waiting:
            one.result()
    return time.monotonic() - began


def _part(bench: Bench, algorithm: str, rounds: int, core: int, place: int, parts: int) -> None:
    ledger = bench.folder / f"ledger{place}.json"
    command = [sys.executable, str(HERE / "with_ffalm.py"), str(bench.work), str(ledger), "--algorithm", algorithm]
    own = [*command, "--rounds", str(rounds), "--seeds", *TEN[place::parts]]
    subprocess.run(["taskset", "-c", str(core), *own], env=bench.variables(), check=True)


def table(found: dict[Case, Figures], algorithm: str, beneath: Floor) -> str:
    """One algorithm's cases, each against the stacked engine with ten seeds."""
    lines = [
        "| simulator | CPU ms / round / seed | wall ms | CPU, times stacked | wall, times stacked | start s "
        "| peak MB | accuracy | DPD | EOD |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    base = found[STACKED]
    for case, one in found.items():
        shared = f" (PSS {one.pss_mb:.0f})" if case.all_cores else ""
        scores = " | ".join(f"{one.scores[-1][name]:.5f}" for name in METRICS)
        lines.append(
            f"| {one.label(case)}{', all cores' if case.all_cores else ''} | {one.cpu_ms:.1f} | {one.wall_ms:.1f} "
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
        if case not in (STACKED, STACKED_ALONE):
            seconds[one.label(case)] = each * (processes if case.all_cores else max(1, processes / cores))
    base = seconds[HALF.label]
    lines = ["| simulator | 10 seeds s | times stacked |", "|---|---|---|"]
    lines += [f"| {name} | {whole:.1f} | {whole / base:.1f} |" for name, whole in seconds.items()]
    return "\n".join([*lines, f"| stacked, measured | {measured:.1f} | {measured / base:.1f} |"])


def main() -> None:
    """Measure, print and perhaps publish."""
    asked = flags(__doc__, rounds=12, repeats=3).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(asked.envs.resolve(), Path(folder))
        bench.export("tabular", asked.rounds)
        with np.load(bench.work) as work:
            beneath = floor(len(work["y"]), len(work["test_y"]), work["x"].shape[1])
        runs: Runs = {}
        whole: dict[str, list[float]] = {}
        for _ in range(asked.repeats):
            for algorithm in asked.algorithms:
                bench.measure_all(CASES, algorithm, runs)
                whole.setdefault(algorithm, []).append(study(bench, algorithm, 70))
    parts = [
        f"{machine()} `python benchmarks/peers/run.py --envs DIR`: {asked.rounds} rounds, {asked.repeats} runs each: "
        "median CPU time, shortest wall times, largest memory. One core, Flower all. "
        f"Floor: {beneath.ffalm_gflop:.2f} GFLOP a round of FFALM, {beneath.fedavg_gflop:.2f} of FedAvg, at "
        f"{beneath.gflops:.0f} GFLOP/s. Metrics are those of seed 0 after the last round."
    ]
    parts += left_out(bench, CASES)
    for algorithm in asked.algorithms:
        found = typical_of(algorithm, runs)
        parts += [f"**{algorithm}**", table(found, algorithm, beneath)]
        parts += [
            f"A whole study of {algorithm}: 70 rounds of 10 seeds, from start to exit, on all cores. Computed from the "
            "table, one process a core (Flower uses all by itself; stacked has 5 seeds a process); stacked also "
            "measured, the best of the repeats:",
            studies(found, min(whole[algorithm]), 70, os.cpu_count() or 1),
        ]
    show("The tabular study beside other simulators", parts, asked.write)


if __name__ == "__main__":
    main()
