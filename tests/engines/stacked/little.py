"""Run by test_fallback.py in a process of its own: a study that wants more memory than its limit leaves.

It is computed without a limit, then with as many MB as are given: once as the engine plans it, once as it falls back
where it may not plan. Prints as JSON how often memory ran out, and by how much the models differ at most.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

import ffalm
from ffalm.engines import Job, Training
from ffalm.engines.stacked import StackedEngine, needs, stack
from ffalm.federation import Federation
from ffalm.system import memory

CPU = torch.device("cpu")


def jobs_of(clients: int, rows: int, seeds: int) -> list[Job]:
    draws = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(rows, 50, generator=draws, dtype=torch.float64), *torch.randint(0, 2, (2, rows), generator=draws))
        for _ in range(clients)
    ]
    owned = Federation.from_arrays(parts, validation=parts[0])
    model = lambda: nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 2)).double()  # noqa: E731
    plan = Training(rounds=2, batch_size=100)
    return [Job.of(ffalm.FFALM(), owned, model, plan, seed, CPU) for seed in range(seeds)]


def computed(jobs: list[Job]) -> tuple[Tensor, int]:
    """All numbers of the last models, and how often a round began anew."""
    with patch.object(stack, "give_back", wraps=memory.give_back) as anew:
        last = {number: done.snapshot.model for number, done in StackedEngine(2**28).train(jobs)}
    memory.give_back(CPU)
    return torch.cat([entry.flatten() for number in sorted(last) for entry in last[number].values()]), anew.call_count


def limit(room: int) -> None:
    """Leave this process so many bytes more than it holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + room, resource.RLIM_INFINITY))


def main(megabytes: int) -> None:
    torch.set_num_threads(1)
    jobs = jobs_of(40, 200, 2)
    plenty, _ = computed(jobs)
    limit(megabytes * 2**20)
    planned, failed = computed(jobs)
    with patch.object(needs, "free", return_value=None):
        unplanned, fallen = computed(jobs)
    apart = max(float((found - plenty).abs().max()) for found in (planned, unplanned))
    print(json.dumps({"difference": apart, "planned": {"fell back": failed}, "unplanned": {"fell back": fallen}}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
