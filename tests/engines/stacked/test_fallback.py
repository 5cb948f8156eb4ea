"""Where memory runs out, work goes on in smaller pieces and gives the same numbers."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ffalm
from ffalm.engines import Job, Round, Training
from ffalm.engines.stacked import StackedEngine, needs, stack
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.system import memory

EXHAUSTED = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


def owned(seed: int) -> Federation:
    draws = torch.Generator().manual_seed(seed)
    clients = [
        (torch.randn(rows, 6, generator=draws, dtype=torch.float64), *torch.randint(0, 2, (2, rows), generator=draws))
        for rows in (30, 11, 50, 24)
    ]
    return Federation.from_arrays(clients, validation=clients[0])


def jobs_of(seeds: int, rounds: int = 3) -> list[Job]:
    model = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()  # noqa: E731
    plan = Training(rounds=rounds, batch_size=8, lr=0.2)
    return [Job.of(ffalm.FFALM(), owned(seed), model, plan, seed, torch.device("cpu")) for seed in range(seeds)]


def by_round(rounds: Iterator[tuple[int, Round]]) -> dict[tuple[int, int], Round]:
    """Rounds by job and number, each given once."""
    found: dict[tuple[int, int], Round] = {}
    for number, done in rounds:
        assert (number, done.snapshot.round) not in found
        found[number, done.snapshot.round] = done
    return found


def assert_same(found: dict[tuple[int, int], Round], expected: dict[tuple[int, int], Round]) -> None:
    assert found.keys() == expected.keys()
    for key, reference in expected.items():
        for name, entry in reference.snapshot.model.items():
            torch.testing.assert_close(found[key].snapshot.model[name], entry, rtol=1e-9, atol=1e-9)
        for name, value in reference.snapshot.state.items():
            torch.testing.assert_close(found[key].snapshot.state[name], value, rtol=1e-9, atol=1e-9)
        for name in ("accuracy", "dpd", "train_loss"):
            assert found[key].record[name] == pytest.approx(reference.record[name], abs=1e-9)


def limited(
    monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[..., bool], error: Exception | None = None
) -> list[int]:
    """Let a function of the stack run out of memory after it has done its work; a list of how many lanes did."""
    whole = getattr(stack, name)
    failed: list[int] = []

    def tried(kernel: Any, *given: Any) -> Any:
        weights = next(value for value in given if hasattr(value, "trained"))
        result = whole(kernel, *given)
        if fails(len(weights.trained[0])):
            failed.append(len(weights.trained[0]))
            raise error or RuntimeError(EXHAUSTED)
        return result

    monkeypatch.setattr(stack, name, tried)
    return failed


@pytest.mark.parametrize("most", [5, 2, 1])
def test_training_that_runs_out_of_memory_begins_anew_in_smaller_chunks(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    expected = by_round(StackedEngine().train(jobs_of(2)))
    failed = limited(monkeypatch, "train", lambda lanes: lanes > most)
    assert_same(by_round(StackedEngine(2**16).train(jobs_of(2))), expected)
    assert failed
    assert len(failed) < 20, "what was learnt in the first round holds for the next"


def test_an_error_of_a_gpu_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_round(StackedEngine().train(jobs_of(1)))
    limited(monkeypatch, "train", lambda lanes: lanes > 1, torch.OutOfMemoryError("CUDA out of memory."))
    assert_same(by_round(StackedEngine(2**15).train(jobs_of(1))), expected)


def test_a_round_that_fails_after_its_models_were_averaged_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_round(StackedEngine().train(jobs_of(2)))
    calls = iter(range(1000))
    failed = limited(monkeypatch, "score", lambda lanes: next(calls) in (2, 7))  # validation comes after the averages
    assert_same(by_round(StackedEngine(2**15).train(jobs_of(2))), expected)
    assert len(failed) == 2


def test_jobs_that_have_no_room_together_are_parted_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_round(StackedEngine().train(jobs_of(3)))
    whole = stack.Stack._round

    def tried(self: stack.Stack, number: int, going: list[int], *scores: Any) -> Any:
        found = whole(self, number, going, *scores)
        if number == 2 and len(going) > 1:
            raise MemoryError
        return found

    monkeypatch.setattr(stack.Stack, "_round", tried)
    assert_same(by_round(StackedEngine().train(jobs_of(3))), expected)


def test_a_stack_is_gone_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[stack.Stack]] = []
    begin = stack.Stack.__init__

    def noted(self: stack.Stack, jobs: Any, budget: int) -> None:
        assert all(other() is None for other in made)
        made.append(weakref.ref(self))
        begin(self, jobs, budget)

    monkeypatch.setattr(stack.Stack, "__init__", noted)
    monkeypatch.setattr(needs, "free", lambda device, processes: 1000)
    gc.disable()
    try:
        list(StackedEngine().train(jobs_of(3)))
    finally:
        gc.enable()
    assert len(made) == 3


def test_one_client_that_is_too_much_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "train", lambda lanes: True)
    with pytest.raises(UserError, match=r"The cpu has too little memory .* about \d.* are needed.*; choose a smaller"):
        list(StackedEngine(2**14).train(jobs_of(2)))


def test_other_errors_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = limited(monkeypatch, "train", lambda lanes: True, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="multiplied"):
        list(StackedEngine().train(jobs_of(2)))
    assert len(failed) == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits are set as Linux knows them")
def test_a_process_with_little_memory_gives_the_numbers_of_one_with_plenty() -> None:
    script = str(Path(__file__).with_name("little.py"))
    # By default glibc keeps freed blocks, and how many it has kept when the limit is set differs between machines:
    # with enough of them nothing runs out. Every tensor is a mapping of its own here, given back when it is freed.
    heap = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, script, "30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | heap)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["difference"] < 1e-9
    assert found["planned"]["fell back"] == 0
    assert found["unplanned"]["fell back"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_with_little_memory_gives_the_numbers_of_one_with_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    monkeypatch.setattr(needs, "free", lambda device, processes: None)
    anew: list[torch.device] = []

    def noted(device: torch.device) -> None:
        anew.append(device)
        memory.give_back(device)

    monkeypatch.setattr(stack, "give_back", noted)
    wide = lambda: nn.Sequential(nn.Linear(6, 50_000), nn.ReLU(), nn.Linear(50_000, 2)).double()  # noqa: E731
    jobs = [
        dataclasses.replace(job, spec=dataclasses.replace(job.spec, device=device, model=wide))
        for job in jobs_of(4, rounds=2)
    ]
    expected = by_round(StackedEngine(2**30).train(jobs))
    assert not anew
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # torch keeps one for each stream that the tests of `graphed` used
    memory.give_back(device)
    limit = torch.cuda.memory_allocated(device) + 2**28
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info(device)[1], device)
    try:
        found = by_round(StackedEngine(2**30).train(jobs))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert anew
    assert_same(found, expected)
