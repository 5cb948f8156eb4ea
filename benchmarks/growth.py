"""How the stacked engine's time and memory grow with clients and with seeds: `python benchmarks/growth.py [--write]`.

FFALM with the MLP, on one core, each case in a process of its own. Three questions:
- the same rows over more and more clients;
- more and more clients that each bring 300 rows of their own, of which a tenth take part in a round;
- more and more seeds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from results import alone, machine, publish
from tabular import dataset, model_of
from torch import nn

from ffalm.algorithms import FFALM
from ffalm.data.types import Dataset, Examples, Task
from ffalm.engines import Job, Training
from ffalm.engines.stacked import StackedEngine
from ffalm.federation import Federation
from ffalm.partition import Partition

CLIENTS = (10, 30, 100, 300, 1000)
SEEDS = (1, 2, 5, 10, 20)
OWN_ROWS = 300


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    clients: int = 10
    participation: float = 1.0
    seeds: int = 1
    own_rows: int | None = None  # rows that each client brings; None divides Adult among them
    partition: str = "iid"
    rounds: int = 12

    @property
    def taking_part(self) -> int:
        """Clients in a round."""
        return round(self.clients * self.participation)


@dataclass(frozen=True)
class Figures:
    """What a case needed; times are of a round of all seeds, the first left out."""

    cpu_ms: float
    wall_ms: float
    first_s: float
    rows_a_round: float
    before_mb: float  # libraries and data, as the engine begins
    peak_mb: float


def generated(train: int, test: int) -> Dataset:
    """Rows of 6 numbers and 8 categories as 101 one-hot columns."""
    draws = torch.Generator().manual_seed(0)
    rows = train + test
    sizes = [8, 16, 7, 14, 6, 5, 2, 43]
    codes = [(torch.rand(rows, generator=draws) ** 2 * size).long().clamp(max=size - 1) for size in sizes]
    hot = [nn.functional.one_hot(code, size).float() for code, size in zip(codes, sizes, strict=True)]
    x = torch.cat([torch.randn(rows, 6, generator=draws), *hot], 1)
    score = x @ torch.randn(x.shape[1], generator=draws) + torch.randn(rows, generator=draws)
    examples = Examples(x, (score > score.quantile(0.75)).long(), codes[6])
    parts = [examples.take(torch.arange(first, last)) for first, last in ((0, train), (train, rows))]
    return Dataset(Task("generated"), parts[0], parts[1], parts[1])


def measure(case: Case) -> Figures:
    """Run one case in this process."""
    torch.set_num_threads(1)
    data = dataset(dense=False) if case.own_rows is None else generated(case.clients * case.own_rows, 16281)
    partition = Partition(case.partition, case.clients, 0.3)  # type: ignore[arg-type]
    training = Training(rounds=case.rounds, participation=case.participation)
    inputs = data.train.x.shape[1]
    jobs = [
        Job.of(FFALM(), Federation.from_dataset(data, partition, seed), lambda: model_of("mlp", inputs), training, seed,
            torch.device("cpu"))
        for seed in range(case.seeds)
    ]  # fmt: skip
    rows = len(data.train) * case.participation * case.seeds
    del data
    before = _resident()
    began = time.perf_counter()
    marks = []
    for seen, _ in enumerate(StackedEngine().train(jobs), start=1):
        if seen % case.seeds == 0:
            marks.append((time.process_time(), time.perf_counter()))
    cpu, wall = (1e3 * (marks[-1][kind] - marks[0][kind]) / (len(marks) - 1) for kind in (0, 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figures(cpu, wall, marks[0][1] - began, rows, before, peak)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def table(first: str, cases: dict[str, Case], repeats: int) -> str:
    """Cases against the first of them; medians of a few runs."""
    lines = [
        f"| {first} | rows a round | CPU ms / round | times the first | wall ms | first round s | before MB "
        "| peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    base = None
    for label, case in cases.items():
        runs = [alone(measure, case) for _ in range(repeats)]
        cpu, wall, start = (
            statistics.median(getattr(run, name) for run in runs) for name in ("cpu_ms", "wall_ms", "first_s")
        )
        base = base or cpu
        peak = max(run.peak_mb for run in runs)
        lines.append(
            f"| {label} | {runs[0].rows_a_round:,.0f} | {cpu:.1f} | {cpu / base:.2f} | {wall:.1f} | {start:.2f} "
            f"| {runs[0].before_mb:.0f} | {peak:.0f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="replace the tables in RESULTS.md")
    asked = parser.parse_args()
    divided = {f"{clients}": Case(clients) for clients in CLIENTS}
    divided["1000, 10 % take part"] = Case(CLIENTS[-1], 0.1)
    joining = {f"{clients} ({clients // 10})": Case(clients, 0.1, own_rows=OWN_ROWS) for clients in CLIENTS}
    seeds = {f"{count}": Case(seeds=count, partition="plain") for count in SEEDS}
    tables = [
        "The same 32,561 rows of Adult dealt out to more and more clients; all take part unless said:",
        table("clients", divided, asked.repeats),
        f"More and more clients that each bring {OWN_ROWS} rows; a tenth take part in a round:",
        table("clients (taking part)", joining, asked.repeats),
        "More and more seeds of the tabular study (10 clients, plain Dirichlet 0.3), computed together:",
        table("seeds", seeds, asked.repeats),
    ]
    about = (
        f"{machine()} `taskset -c 1 python benchmarks/growth.py`: stacked, FFALM, MLP, one core, 12 rounds, medians of "
        f"{asked.repeats} runs; `before` is what libraries and data hold as the engine begins."
    )
    if asked.write:
        publish("How the stacked engine grows", "\n\n".join([about, *tables]))


if __name__ == "__main__":
    main()
