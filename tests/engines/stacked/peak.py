"""Run by test_needs.py in a process of its own: what a stack takes at most, beside what was planned for it.

Prints bytes, a line for each case: the peak with one lane at a time, the plan for that, the peak with the usual budget,
and that budget.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import ffalm
from ffalm.data.types import Dataset, Examples, Task
from ffalm.engines import Job, Training
from ffalm.engines.stacked import StackedEngine
from ffalm.engines.stacked.needs import needs_of
from ffalm.federation import Federation
from ffalm.models import CNN
from ffalm.partition import Partition

BUDGET = 2**26


def dense(rows: int, draws: torch.Generator) -> Tensor:
    return torch.randn(rows, 100, generator=draws)


def hot(rows: int, draws: torch.Generator) -> Tensor:
    codes = [torch.randint(0, 12, (rows,), generator=draws) for _ in range(8)]
    columns = [nn.functional.one_hot(code, 12).float() for code in codes]
    return torch.cat([torch.randn(rows, 4, generator=draws), *columns], 1)


def images(rows: int, draws: torch.Generator) -> Tensor:
    return torch.randint(0, 256, (rows, 3, 16, 16), generator=draws, dtype=torch.uint8)


def jobs_of(
    kind: Callable[[int, torch.Generator], Tensor],
    rows: int,
    clients: int,
    seeds: int,
    hidden: int,
    algorithm: str = "ffalm",
    optimizer: Literal["sgd", "adam"] = "sgd",
) -> list[Job]:
    draws = torch.Generator().manual_seed(0)
    train, validation, test = [
        Examples(kind(size, draws), *(torch.randint(0, 2, (size,), generator=draws) for _ in range(2)))
        for size in (rows, rows // 4, 10)
    ]
    data = Dataset(Task("t"), train, validation, test)

    def model() -> nn.Module:
        if kind is images:
            return CNN((hidden,)).build((3, 16, 16), 2)
        return nn.Sequential(nn.Linear(100, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    return [
        Job.of(
            ffalm.algorithms()[algorithm](),
            Federation.from_dataset(data, Partition("iid", clients), seed),
            model,
            Training(rounds=2, optimizer=optimizer),
            seed,
            torch.device("cpu"),
        )
        for seed in range(seeds)
    ]


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def peak(jobs: list[Job], budget: int) -> int:
    """What training takes at most, beside what is there before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS:")
    for _ in StackedEngine(budget).train(jobs):
        pass
    return status("VmHWM:") - before


def main(case: str) -> None:
    name, *settings = case.split(", ")
    kind = {"dense": dense, "hot": hot, "images": images}[name]
    named: dict[str, Any] = dict(setting.split("=") for setting in settings)
    sizes: dict[str, Any] = {
        key: int(value) if value.replace("_", "").isdigit() else value for key, value in named.items()
    }
    for _ in StackedEngine().train(jobs_of(kind, 200, 2, 1, 4)):  # whatever is loaded once
        pass
    jobs = jobs_of(kind, **sizes)
    alone = peak(jobs, 1)
    print(alone, needs_of(jobs, jobs[0].spec.model()).total, peak(jobs, BUDGET), BUDGET)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        main(case)
