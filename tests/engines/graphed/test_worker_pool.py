"""How many workers a round gets and who trains in which; no GPU is needed to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

import ffalm
from ffalm.engines import Job, Training
from ffalm.engines.graphed import worker_pool as module
from ffalm.engines.graphed.worker import ClientInput
from ffalm.engines.graphed.worker_pool import WorkerPool, shared_out


def test_the_largest_clients_are_shared_out_first() -> None:
    loads = {0: 10, 1: 70, 2: 30, 3: 40, 4: 20}
    assert shared_out(loads, 2) == [[1, 4], [3, 2, 0]]


def test_equal_clients_are_spread_evenly_and_always_the_same_way() -> None:
    loads = dict.fromkeys(range(10), 100)
    shares = shared_out(loads, 5)
    assert [len(share) for share in shares] == [2] * 5
    assert shares == shared_out(dict(reversed(loads.items())), 5)


class FakeWorker:
    """A worker that takes a part of a pretended GPU when it is prepared."""

    free = 0
    takes = 0
    fails_at: int | None = None
    made = 0

    def __init__(self, job: Job) -> None:
        self.number = FakeWorker.made
        FakeWorker.made += 1

    def prepare(self, *_: Any) -> None:
        if self.number == FakeWorker.fails_at:
            raise torch.cuda.OutOfMemoryError("full")
        FakeWorker.free -= FakeWorker.takes


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WorkerPool]:
    def plan(free: int, takes: int, wanted: int = 5, fails_at: int | None = None) -> WorkerPool:
        monkeypatch.setattr(module, "StreamWorker", FakeWorker)
        monkeypatch.setattr(module, "_free", lambda device: FakeWorker.free)
        FakeWorker.free, FakeWorker.takes, FakeWorker.fails_at, FakeWorker.made = free, takes, fails_at, 0
        return WorkerPool(_job(), wanted)

    return plan


def opened(workers: WorkerPool, clients: int) -> int:
    job = _job()
    return len(workers.open(clients, job.federation.clients[0], ClientInput({}, {}, {}, {})))


def test_there_are_as_many_workers_as_are_wanted_where_memory_allows(planned: Callable[..., WorkerPool]) -> None:
    assert opened(planned(free=1000, takes=10), clients=10) == 5


def test_there_are_no_more_workers_than_clients(planned: Callable[..., WorkerPool]) -> None:
    assert opened(planned(free=1000, takes=10), clients=2) == 2


def test_workers_must_fit_into_what_is_free_with_a_reserve(planned: Callable[..., WorkerPool]) -> None:
    # The first takes 30 of 100; of the 70 left a fifth is spared, so that 56 hold one more.
    assert opened(planned(free=100, takes=30), clients=10) == 2


def test_a_gpu_that_holds_only_one_worker_trains_in_one(planned: Callable[..., WorkerPool]) -> None:
    assert opened(planned(free=100, takes=80), clients=10) == 1


def test_running_out_of_memory_leaves_the_workers_there_are(planned: Callable[..., WorkerPool]) -> None:
    workers = planned(free=1000, takes=10, fails_at=3)
    assert opened(workers, clients=10) == 3
    assert opened(workers, clients=10) == 3
    assert FakeWorker.made == 4


def _job() -> Job:
    rows = torch.rand(8, 3), torch.arange(8) % 2, torch.arange(8) // 4
    federation = ffalm.Federation.from_arrays([cast(Any, rows)])
    model = torch.nn.Identity
    return Job.of(ffalm.FedAvg(), federation, model, Training(batch_size=4), 0, torch.device("cpu"))
