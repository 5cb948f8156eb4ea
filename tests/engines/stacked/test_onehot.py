"""Rows as lists of the columns that are 1: how lists are turned round, and when they are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ffalm
from ffalm.engines import Job, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine
from ffalm.engines.stacked.choose import kernel_for
from ffalm.engines.stacked.onehot import Kept, Listed, OneHot, _in_order_of
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

    assert isinstance(kernel_for(model(), [client.x for client in owned.clients], CPU), OneHot)
    one = Job(ffalm.FFALM(), owned, model, Training(rounds=3, batch_size=8, lr=0.2), 0, CPU)
    (*_, (_, expected)), (*_, (_, found)) = LoopEngine().train([one]), StackedEngine().train([one])
    for name, entry in expected.snapshot.model.items():
        torch.testing.assert_close(found.snapshot.model[name], entry, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lacking", [None, 3])
def test_a_row_that_lacks_a_category_gives_the_loops_numbers(lacking: int | None) -> None:
    assert_like_the_loop(federation(lacking), hidden=6)


def test_a_first_layer_of_one_unit_gives_the_loops_numbers() -> None:
    assert_like_the_loop(federation(), hidden=1)


def in_order(codes: Tensor) -> Tensor:
    """The row of every code of a line, in the order of the codes and then of the rows."""
    lines, _, listed = codes.shape
    return torch.from_numpy(np.argsort(codes.reshape(lines, -1).numpy(), axis=1, kind="stable") // listed)


@pytest.mark.parametrize("rows", [1, 2, 5, 128])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_lists_are_turned_round_whether_places_overlap_or_not(rows: int, dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(rows)
    apart = torch.stack([torch.randint(10 * k, 10 * k + 9, (6, rows), generator=draws) for k in range(3)], 2).to(dtype)
    mixed = torch.randint(0, 30, (6, rows, 3), generator=draws).to(dtype).sort(2)[0]
    for codes in (apart, mixed, torch.cat([apart, mixed])):
        found = _in_order_of(codes).view(len(codes), -1)
        assert found.dtype == torch.int32
        assert torch.equal(found.long(), in_order(codes))


def test_very_many_rows_of_very_many_codes_are_turned_round_too() -> None:
    codes = torch.randint(0, 2**15 - 1, (1, 2**17, 1), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    assert torch.equal(_in_order_of(codes).view(1, -1).long(), in_order(codes))


def test_lists_are_kept_from_the_second_time_on() -> None:
    made: list[Listed] = []

    def make() -> Listed:
        nothing = torch.zeros(0)
        made.append(Listed(nothing, nothing, nothing, nothing, short=False))
        return made[-1]

    kept = Kept(make)
    assert [kept() is made[-1] for _ in range(4)] == [True] * 4
    assert len(made) == 2
