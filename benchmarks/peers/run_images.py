"""The image study in ffalm's loop, a plain loop and other simulators: same pictures, model and batches, one table.

    python benchmarks/peers/run_images.py --envs DIR [--write]

ResNet-18 at 64 px on drawn faces, 10 equal clients, batch 128, on a CPU; BatchNorm's statistics are averaged like
weights in all. The peers' environments are those of `run.py`. Everybody has all cores: one process whose torch threads
share them, or, for those that can, one process a core (FFALM in peers that can only so). Every case runs in a process
of its own, `--repeats` times in turn: the median of the CPU time counts, and the shortest of wall times, which a shared
machine disturbs. Threads that wait sleep (OMP_WAIT_POLICY), so that CPU time is work even where others take a core.

Rounding tells simulators apart from the second round on, so the metrics shown are those after the first; `--double`
computes in float64 (slow: choose a small `--size` and `--each`) and shows those after the last.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench import ALGORITHMS, Bench, Case, Figures, Runs, flags, left_out, typical_of
from work import BATCH, Work, inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from floor import Floor, counted_floor
from results import machine, show

CORES = len(os.sched_getaffinity(0))
METRICS = ("accuracy", "dpd", "eod", "loss")
SPREAD = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}")
TOGETHER = f"1 process x {CORES} threads"
APART = f"{CORES} processes x 1 thread"


def _case(
    label: str, script: str, *arguments: str, environment: str | None = None, apart: bool = False, seeds: int = 1,
    both: bool = True,
) -> Case:  # fmt: skip
    """On all cores, by threads or by processes; both algorithms, or FedAvg alone."""
    launcher = SPREAD if apart and environment == "pfl" else ()
    threads = 1 if apart else CORES
    algorithms = ALGORITHMS if both else ("fedavg",)
    return Case(label, script, arguments, environment, seeds, True, threads, launcher, algorithms)


LOOP = _case("**loop**", "with_ffalm.py", "--engine", "loop")
SEEDS = _case(
    f"loop, {CORES} seeds", "with_ffalm.py", "--engine", "loop", "--apart", "--seeds", *map(str, range(CORES)),
    apart=True, seeds=CORES,
)  # fmt: skip
CASES = [
    LOOP,
    SEEDS,
    _case("plain loop, channels_last", "with_ffalm.py", "--engine", "plain"),
    _case("plain loop, NCHW", "with_ffalm.py", "--engine", "plain-nchw"),
    _case("pfl", "with_pfl.py", environment="pfl", both=False),
    _case("pfl", "with_pfl.py", environment="pfl", apart=True),
    _case("declearn", "with_declearn.py", environment="declearn", both=False),
    _case("Flower simulation", "with_flower.py", "--actors", "1", environment="flower", both=False),
    _case("Flower simulation", "with_flower.py", environment="flower", apart=True),
]


def table(found: dict[Case, Figures], algorithm: str, beneath: Floor, shown: int) -> str:
    """One algorithm's cases, each against the loop engine, with the metrics after a round."""
    lines = [
        "| simulator | cores used by | CPU s / round | wall s | CPU, times loop | wall, times loop | start s | peak MB "
        "| PSS MB | accuracy | DPD | EOD | loss |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    base = found[LOOP]
    for case, one in found.items():
        scores = " | ".join(f"{one.scores[shown][name]:.5f}" for name in METRICS)
        lines.append(
            f"| {one.label(case)} | {APART if case.threads < CORES else TOGETHER} | {one.cpu_ms / 1e3:.2f} "
            f"| {one.wall_ms / 1e3:.2f} | {one.cpu_ms / base.cpu_ms:.2f} | {one.wall_ms / base.wall_ms:.2f} "
            f"| {one.start_s:.1f} | {one.rss_mb:.0f} | {one.pss_mb:.0f} | {scores} |"
        )
    wall = beneath.ms(algorithm)
    cpu = wall * CORES
    lines.append(
        f"| dense floor | | {cpu / 1e3:.2f} | {wall / 1e3:.2f} | {cpu / base.cpu_ms:.2f} | {wall / base.wall_ms:.2f} "
        "| | | | | | | |"
    )
    return "\n".join(lines)


def floor_of(path: Path) -> Floor:
    """Counted on a few of the pictures."""
    work = Work.load(str(path))
    some = inputs(work.train.x[:4])
    return counted_floor(work.model(), some, len(work.train), len(work.test), CORES)


def heading(asked: argparse.Namespace, beneath: Floor) -> str:
    """What was done, on what, and how to read it."""
    precision, when = ("float64", "last") if asked.double else ("float32", "first")
    return (
        f"{machine()} `python benchmarks/peers/run_images.py --envs DIR --rounds {asked.rounds}`: ResNet-18 (7x7 "
        f"stem), {asked.size} px, drawn faces, 10 clients of {asked.each} images, batch {BATCH}, {precision}, from a "
        f"model that has seen all images three times; {asked.scored} images are scored after each of {asked.rounds} "
        f"rounds. Times are of the rounds after the first; {asked.repeats} runs each: median of "
        f"CPU time, shortest wall times, largest memory. Floor: {beneath.ffalm_gflop:.0f} GFLOP a round of FFALM, "
        f"{beneath.fedavg_gflop:.0f} of FedAvg, at {beneath.gflops:.0f} GFLOP/s on {CORES} cores. Metrics are those "
        f"after the {when} round. Where there are several seeds, times are of one."
    )


def main() -> None:
    """Measure, print and perhaps publish."""
    parser = flags(__doc__, rounds=3, repeats=1)
    parser.add_argument("--each", type=int, default=256, help="images of a client; no last batch of one image")
    parser.add_argument("--scored", type=int, default=512, help="images to score after every round")
    parser.add_argument("--size", type=int, default=64, choices=[32, 64])
    parser.add_argument("--double", action="store_true", help="in float64, where rounding cannot hide a difference")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(asked.envs.resolve(), Path(folder))
        sizes = ["--each", str(asked.each), "--scored", str(asked.scored), "--size", str(asked.size)]
        bench.export("images", asked.rounds, *sizes, *(["--double"] if asked.double else []))
        runs: Runs = {}
        for _ in range(asked.repeats):
            for algorithm in asked.algorithms:
                bench.measure_all(CASES, algorithm, runs)
        parts = [heading(asked, beneath := floor_of(bench.work)), *left_out(bench, CASES)]
    for algorithm in asked.algorithms:
        found = typical_of(algorithm, runs)
        parts += [f"**{algorithm}**", table(found, algorithm, beneath, -1 if asked.double else 0)]
    show("The image study beside other simulators", parts, asked.write)


if __name__ == "__main__":
    main()
