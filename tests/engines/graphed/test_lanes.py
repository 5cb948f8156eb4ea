"""How many lanes a round gets and who trains in which; no GPU is needed to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from ffalm.engines.graphed.lanes import Lanes, shared_out

import ffalm
from ffalm.engines import Job, Training
from ffalm.engines.graphed import lanes as module


def test_the_largest_clients_are_shared_out_first() -> None:
    loads = {0: 10, 1: 70, 2: 30, 3: 40, 4: 20}
    assert shared_out(loads, 2) == [[1, 4], [3, 2, 0]]


def test_equal_clients_are_spread_evenly_and_always_the_same_way() -> None:
    loads = dict.fromkeys(range(10), 100)
    shares = shared_out(loads, 5)
    assert [len(share) for share in shares] == [2] * 5
    assert shares == shared_out(dict(reversed(loads.items())), 5)


class FakeLane:
    """A lane that takes a part of a pretended GPU when it is prepared."""

    free = 0
    takes = 0
    fails_at: int | None = None
    made = 0

    def __init__(self, job: Job) -> None:
        self.number = FakeLane.made
        FakeLane.made += 1

    def prepare(self, *_: Any) -> None:
        if self.number == FakeLane.fails_at:
            raise torch.cuda.OutOfMemoryError("full")
        FakeLane.free -= FakeLane.takes


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lanes]:
    def plan(free: int, takes: int, wanted: int = 5, fails_at: int | None = None) -> Lanes:
        monkeypatch.setattr(module, "Lane", FakeLane)
        monkeypatch.setattr(module, "_free", lambda device: FakeLane.free)
        FakeLane.free, FakeLane.takes, FakeLane.fails_at, FakeLane.made = free, takes, fails_at, 0
        return Lanes(_job(), wanted)

    return plan


def opened(lanes: Lanes, clients: int) -> int:
    job = _job()
    return len(lanes.open(clients, job.federation.clients[0], {}))


def test_there_are_as_many_lanes_as_are_wanted_where_memory_allows(planned: Callable[..., Lanes]) -> None:
    assert opened(planned(free=1000, takes=10), clients=10) == 5


def test_there_are_no_more_lanes_than_clients(planned: Callable[..., Lanes]) -> None:
    assert opened(planned(free=1000, takes=10), clients=2) == 2


def test_lanes_must_fit_into_what_is_free_with_a_reserve(planned: Callable[..., Lanes]) -> None:
    # The first takes 30 of 100; of the 70 left a fifth is spared, so that 56 hold one more.
    assert opened(planned(free=100, takes=30), clients=10) == 2


def test_a_gpu_that_holds_only_one_lane_trains_in_one(planned: Callable[..., Lanes]) -> None:
    assert opened(planned(free=100, takes=80), clients=10) == 1


def test_running_out_of_memory_leaves_the_lanes_there_are(planned: Callable[..., Lanes]) -> None:
    lanes = planned(free=1000, takes=10, fails_at=3)
    assert opened(lanes, clients=10) == 3
    assert opened(lanes, clients=10) == 3
    assert FakeLane.made == 4


def _job() -> Job:
    rows = torch.rand(8, 3), torch.arange(8) % 2, torch.arange(8) // 4
    federation = ffalm.Federation.from_arrays([cast(Any, rows)])
    model = torch.nn.Identity
    return Job.of(ffalm.FedAvg(), federation, model, Training(batch_size=4), 0, torch.device("cpu"))
