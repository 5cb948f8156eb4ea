"""The tabular benchmark: Adult, 10 clients, metrics every round, on one core.

    python benchmarks/tabular.py --models mlp module linear --data one-hot dense --seeds 10 --rounds 70

Each case runs in a process of its own, `--repeats` times, and medians count. CPU time is the column to compare: a
shared machine disturbs wall time. The first round is left out of the times; `--write` puts the table into RESULTS.md.
Adult's files (`ffalm data get adult --root DIR/tabular`) are read from the folder tabular of FFALM_SHARED_DATA=DIR.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from plain import train_plainly
from results import alone, machine, publish
from torch import nn

from ffalm.algorithms import algorithm_class
from ffalm.data.adult import Adult
from ffalm.data.types import Dataset, Examples
from ffalm.engines import Job, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine
from ffalm.federation import Federation
from ffalm.partition import Partition

HERE = Path(__file__).resolve().parent
ENGINES = {"loop": LoopEngine, "stacked": StackedEngine}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    engine: str
    algorithm: str
    model: str
    seeds: int
    rounds: int
    dense: bool  # blur the one-hot columns, so that nothing is sparse


@dataclass(frozen=True)
class Figures:
    """What one engine needed; the first round is left out of the times."""

    cpu_ms: float  # CPU milliseconds a round and seed
    wall_ms: float
    start_s: float  # until the first round was done
    peak_mb: float


class Small(nn.Module):
    """A module that is not an `nn.Sequential`: what users write."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 64)
        self.out = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return self.out(torch.relu(self.hidden(x)))  # type: ignore[no-any-return]


def model_of(name: str, inputs: int) -> nn.Module:
    """The models of the benchmark."""
    if name == "module":
        return Small(inputs)
    if name == "linear":
        return nn.Sequential(nn.Linear(inputs, 2))
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 2))


def dataset(dense: bool) -> Dataset:
    """Adult; all training rows train, the test rows score."""
    folder = Path(os.environ.get("FFALM_SHARED_DATA", HERE.parents[1] / "shared" / "data")) / "tabular"
    loaded = Adult(root=str(folder)).load()
    parts = loaded.train, loaded.validation
    train = Examples(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "group")))
    made = Dataset(loaded.task, train, loaded.test, loaded.test)
    if not dense:
        return made
    noise = torch.Generator().manual_seed(0)
    train, test = (
        Examples(part.x + 0.01 * torch.randn(part.x.shape, generator=noise), part.y, part.group)
        for part in (made.train, made.test)
    )
    return Dataset(made.task, train, test, test)


def measure(case: Case) -> Figures:
    """Run one case in this process."""
    torch.set_num_threads(1)
    data = dataset(case.dense)
    federations = [Federation.from_dataset(data, Partition("plain", 10, 0.3), seed) for seed in range(case.seeds)]
    inputs = data.train.x.shape[1]
    del data
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.process_time(), time.perf_counter()))

    began = time.perf_counter()
    if case.engine == "plain":
        torch.manual_seed(0)
        train_plainly(federations[0], model_of(case.model, inputs), case.rounds, case.algorithm, lambda _: mark())
        per_round = 1
    else:
        algorithm = algorithm_class(case.algorithm)()
        jobs = [
            Job.of(algorithm, federation, lambda: model_of(case.model, inputs), Training(rounds=case.rounds), seed,
                torch.device("cpu"))
            for seed, federation in enumerate(federations)
        ]  # fmt: skip
        for seen, _ in enumerate(ENGINES[case.engine]().train(jobs), start=1):
            if seen % len(jobs) == 0:
                mark()
        per_round = len(jobs)
    cpu, wall = (1e3 * (marks[-1][kind] - marks[0][kind]) / (len(marks) - 1) / per_round for kind in (0, 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figures(cpu, wall, marks[0][1] - began, peak)


def table(cases: list[Case], repeats: int) -> str:
    """Every case measured in fresh processes, as a Markdown table."""
    lines = [
        "| engine | algorithm | model | data | seeds | rounds | CPU ms / round / seed | times the plain loop "
        "| wall ms | first round s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    plain: dict[tuple[str, bool], float] = {}
    for case in cases:
        runs = [alone(measure, case) for _ in range(repeats)]
        cpu, wall, start = (
            statistics.median(getattr(run, name) for run in runs) for name in ("cpu_ms", "wall_ms", "start_s")
        )
        if case.engine == "plain":
            plain[case.model, case.dense] = cpu
        base = plain.get((case.model, case.dense))
        ratio = f"{base / cpu:.1f}" if base else ""
        kind = "dense" if case.dense else "one-hot"
        lines.append(
            f"| {case.engine} | {case.algorithm} | {case.model} | {kind} | {case.seeds} | {case.rounds} | {cpu:.1f} "
            f"| {ratio} | {wall:.1f} | {start:.1f} | {max(run.peak_mb for run in runs):.0f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["plain", "loop", "stacked"], choices=["plain", *ENGINES])
    parser.add_argument("--algorithm", default="ffalm")
    parser.add_argument("--models", nargs="+", default=["mlp", "module", "linear"], choices=["mlp", "module", "linear"])
    parser.add_argument("--data", nargs="+", default=["one-hot", "dense"], choices=["one-hot", "dense"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--slow-rounds", type=int, default=12, help="rounds of plain and loop, on one seed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="replace the table in RESULTS.md")
    given = parser.parse_args()
    cases = [
        Case(engine, given.algorithm, model, given.seeds, given.rounds, data == "dense")
        if engine == "stacked"
        else Case(engine, given.algorithm, model, 1, given.slow_rounds, data == "dense")
        for data in given.data
        for model in given.models
        for engine in given.engines
    ]
    made = table(cases, given.repeats)
    if given.write:
        about = (
            f"{machine()} `taskset -c 1 python benchmarks/tabular.py`: Adult, 10 clients, one core, medians of "
            f"{given.repeats} runs. `module` is an MLP that is not an `nn.Sequential`; `dense` blurs the one-hot "
            "columns, so that nothing is sparse."
        )
        publish("The tabular study by model and data", f"{about}\n\n{made}")


if __name__ == "__main__":
    main()
