"""A first layer on one-hot columns gives the numbers of the loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ffalm
from ffalm.engines import Job, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine
from ffalm.engines.stacked.choose import kernel_for
from ffalm.engines.stacked.onehot import OneHot
from ffalm.federation import Federation

CPU = torch.device("cpu")
SIZES = (7, 5, 12)  # categories of three features


def table(rows: int, lacking: int | None = None) -> Tensor:
    """A column of numbers and three features' one-hot columns; one row may lack its last category."""
    draws = torch.Generator().manual_seed(rows)
    codes = [torch.randint(0, size, (rows,), generator=draws) for size in SIZES]
    hot = [nn.functional.one_hot(code, size).double() for code, size in zip(codes, SIZES, strict=True)]
    if lacking is not None:
        hot[1][lacking] = 0
    return torch.cat([torch.randn(rows, 1, generator=draws, dtype=torch.float64), *hot], 1)


def federation(lacking: int | None = None) -> Federation:
    draws = torch.Generator().manual_seed(0)
    clients = [
        (table(rows, lacking if place == 0 else None),
         torch.randint(0, 2, (rows,), generator=draws), torch.randint(0, 2, (rows,), generator=draws))
        for place, rows in enumerate((40, 9, 70))
    ]  # fmt: skip
    return Federation.from_arrays(clients, validation=clients[1])


def assert_like_the_loop(owned: Federation, hidden: int) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(1 + sum(SIZES), hidden), nn.ReLU(), nn.Linear(hidden, 2)).double()

    training = Training(rounds=3, batch_size=8, lr=0.2)
    jobs = [Job.of(ffalm.FFALM(penalty=penalty), owned, model, training, 0, CPU) for penalty in (2.0, 4.0)]
    assert isinstance(kernel_for(model(), [client.x for client in owned.clients], jobs[0].spec), OneHot)
    expected, found = dict(LoopEngine().train(jobs)), dict(StackedEngine().train(jobs))  # the last round of each
    for number, done in expected.items():
        for name, entry in done.snapshot.model.items():
            torch.testing.assert_close(found[number].snapshot.model[name], entry, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lacking", [None, 3])
def test_a_row_that_lacks_a_category_gives_the_loops_numbers(lacking: int | None) -> None:
    assert_like_the_loop(federation(lacking), hidden=6)


def test_a_first_layer_of_one_unit_gives_the_loops_numbers() -> None:
    assert_like_the_loop(federation(), hidden=1)
