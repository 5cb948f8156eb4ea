"""What a stack needs, told beforehand: by rows, jobs and lanes, and held against what it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import nn

import ffalm
from ffalm.data.types import Dataset, Examples, Task
from ffalm.engines import Job, Training
from ffalm.engines.prepared_jobs import PreparedJob, prepare_job
from ffalm.engines.stacked import needs
from ffalm.engines.stacked.needs import cut, needs_of, stacks_in
from ffalm.federation import Federation
from ffalm.partition import Partition

USUAL = 2**26


def part(rows: int, features: int = 20) -> Examples:
    draws = torch.Generator().manual_seed(rows)
    labels = (torch.randint(0, 2, (rows,), generator=draws) for _ in range(2))
    return Examples(torch.randn(rows, features, generator=draws), *labels)


def jobs_of(seeds: int, rows: int = 4000, clients: int = 10, hidden: int = 8, **training: float) -> list[Job]:
    data = Dataset(Task("t"), part(rows), part(400), part(10))
    plan = Training(**{"rounds": 1, **training})  # type: ignore[arg-type]
    return [
        Job.of(
            ffalm.FFALM(),
            Federation.from_dataset(data, Partition("iid", clients), seed),
            lambda: nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, 2)),
            plan,
            seed,
            torch.device("cpu"),
        )
        for seed in range(seeds)
    ]


def total(jobs: list[Job]) -> int:
    return needs_of(jobs, jobs[0].spec.model()).total


def waiting(jobs: list[Job]) -> list[PreparedJob]:
    return [prepare_job(number, job) for number, job in enumerate(jobs)]


def test_seeds_share_the_rows_of_their_table() -> None:
    few, many = jobs_of(2), jobs_of(2, rows=40_000, clients=100, participation=0.1)
    assert total(few) < 2 * total(few[:1])
    assert total(many) - total(many[:1]) < total(many[:1]) / 2


def test_more_rows_lanes_weights_and_wider_batches_need_more() -> None:
    usual = total(jobs_of(1))
    assert total(jobs_of(1, rows=8000)) > usual
    assert total(jobs_of(1, hidden=800)) > usual
    assert total(jobs_of(1, clients=400, hidden=800)) > 2 * total(jobs_of(1, hidden=800))
    assert total(jobs_of(1, hidden=800, clients=2, batch_size=2000)) > total(jobs_of(1, hidden=800, clients=2))


def test_with_enough_memory_the_layout_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = waiting(jobs_of(4))
    for left in (2**31, 2**34, None):
        monkeypatch.setattr(needs, "free", lambda device, processes, left=left: left)
        found = cut(jobs, USUAL)
        assert found.budget == USUAL
        assert found.stacks == [jobs]


def test_working_memory_shrinks_before_jobs_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(4)
    monkeypatch.setattr(needs, "free", lambda device, processes: int(1.3 * total(jobs)))
    found = cut(waiting(jobs), USUAL)
    assert len(found.stacks) == 1
    assert 1 < found.budget < USUAL


def test_jobs_that_do_not_fit_together_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(5, clients=100, hidden=500)
    room = int(1.3 * total(jobs[:2]))
    monkeypatch.setattr(needs, "free", lambda device, processes: room)
    found = cut(waiting(jobs), USUAL)
    assert [len(stack) for stack in found.stacks] == [2, 1, 1, 1]
    assert sorted(one.number for stack in found.stacks for one in stack) == list(range(5))
    assert stacks_in(room, jobs, jobs[0].spec.model()) == 4


def test_a_job_that_fits_nowhere_is_tried_in_the_least_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "free", lambda device, processes: 1000)
    found = cut(waiting(jobs_of(2)), USUAL)
    assert [len(stack) for stack in found.stacks] == [1, 1]
    assert found.budget == 1


CASES = {
    "dense rows": "dense, rows=20_000, clients=10, seeds=4, hidden=64",
    "one-hot rows": "hot, rows=60_000, clients=10, seeds=4, hidden=64",
    "many clients": "hot, rows=20_000, clients=500, seeds=2, hidden=64",
    "a large model": "dense, rows=1000, clients=20, seeds=2, hidden=3000",
    "control variates": "dense, rows=1000, clients=20, seeds=2, hidden=3000, algorithm=scaffold",
    "control variates of many clients": "hot, rows=20_000, clients=200, seeds=2, hidden=64, algorithm=scaffold",
    "adam": "dense, rows=1000, clients=20, seeds=2, hidden=3000, optimizer=adam",
    "images": "images, rows=4000, clients=10, seeds=2, hidden=8",
}
CHEAPEST = ("dense rows", "a large model", "control variates", "adam")


def assert_estimates_hold(cases: Collection[str]) -> None:
    """In one process of its own for all of them: most of its time it imports torch."""
    command = [sys.executable, str(Path(__file__).with_name("peak.py")), *(CASES[case] for case in cases)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for case, line in zip(cases, said.splitlines(), strict=True):
        alone, planned, chunked, budget = map(float, line.split())
        assert alone <= planned <= 6 * alone, case
        assert chunked <= planned + budget, case


measurable = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are measured as Linux tells them"
)


@measurable
def test_estimates_hold_what_a_stack_takes() -> None:
    assert_estimates_hold(CHEAPEST)


@pytest.mark.slow
@measurable
def test_estimates_hold_what_larger_stacks_take() -> None:
    assert_estimates_hold([case for case in CASES if case not in CHEAPEST])
