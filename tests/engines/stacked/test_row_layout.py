"""Where rows lie: each row of a table once, however many seeds deal it out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ffalm
from ffalm.data.types import Dataset, Examples, Task
from ffalm.engines import Job, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine
from ffalm.engines.stacked.row_layout import row_layout_of
from ffalm.federation import Federation
from ffalm.partition import Partition


def table(rows: int, seed: int, hot: bool) -> Examples:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 12, generator=draws, dtype=torch.float64)
    if hot:
        codes = torch.randint(0, 10, (rows,), generator=draws)
        x = torch.cat([x[:, :2], nn.functional.one_hot(codes, 10).double()], 1)
    return Examples(x, *(torch.randint(0, 2, (rows,), generator=draws) for _ in range(2)))


def dealt(seeds: int, hot: bool = False) -> list[Federation]:
    data = Dataset(Task("t"), table(200, 0, hot), table(40, 1, hot), table(30, 2, hot))
    return [Federation.from_dataset(data, Partition("plain", 4, 1.0, 5), seed) for seed in range(seeds)]


def test_seeds_that_deal_out_one_table_hold_it_once() -> None:
    federations = dealt(3)
    found = row_layout_of(federations)
    assert [len(source) for source in found.sources] == [200, 40]
    assert found.length == 3 * 200 + 40
    assert [parts[-1] for parts in found.parts] == [found.parts[0][-1]] * 3
    assert found.lookup is not None
    every = torch.cat([source.x for source in found.sources])
    for federation, parts in zip(federations, found.parts, strict=True):
        for examples, (first, rows) in zip([*federation.clients, federation.validation], parts, strict=True):
            assert examples is not None
            assert torch.equal(every[found.lookup[first : first + rows]], examples.x)


def test_parts_that_stand_for_themselves_need_no_lookup() -> None:
    clients = [(part.x, part.y, part.group) for part in (table(9, 0, False), table(5, 1, False))]
    found = row_layout_of([Federation.from_arrays(clients, validation=clients[1])])
    assert found.lookup is None
    assert found.parts == [[(0, 9), (9, 5), (14, 5)]]


@pytest.mark.parametrize("hot", [False, True], ids=["dense", "one-hot"])
def test_rows_that_are_shared_give_the_loops_numbers(hot: bool) -> None:
    model = lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2)).double()  # noqa: E731
    plan = Training(rounds=2, batch_size=16, lr=0.2)
    jobs = [
        Job.of(ffalm.FFALM(), federation, model, plan, seed, torch.device("cpu"))
        for seed, federation in enumerate(dealt(2, hot))
    ]
    expected, found = (
        {(number, done.snapshot.round): done.snapshot.model for number, done in engine.train(jobs)}
        for engine in (LoopEngine(), StackedEngine())
    )
    assert expected.keys() == found.keys()
    for key, entries in expected.items():
        for name, entry in entries.items():
            torch.testing.assert_close(found[key][name], entry, rtol=1e-9, atol=1e-9)
