"""Lists of the columns that are 1: turned round in the order of their codes, and kept where they come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ffalm.engines.stacked.sparse_rows import CachedSparseRows, SparseRows, fetched, in_order_of


def test_records_are_fetched_whole_and_in_the_order_of_the_numbers() -> None:
    records = torch.arange(60, dtype=torch.uint8).view(5, 12)
    rows = torch.tensor([[3, 0], [4, 4]], dtype=torch.int32)
    assert torch.equal(fetched(records, rows), records[rows.long()])


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
        found = in_order_of(codes).view(len(codes), -1)
        assert found.dtype == torch.int32
        assert torch.equal(found.long(), in_order(codes))


def test_very_many_rows_of_very_many_codes_are_turned_round_too() -> None:
    codes = torch.randint(0, 2**15 - 1, (1, 2**17, 1), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    assert torch.equal(in_order_of(codes).view(1, -1).long(), in_order(codes))


def test_lists_are_kept_from_the_second_time_on() -> None:
    made: list[SparseRows] = []

    def make() -> SparseRows:
        nothing = torch.zeros(0)
        made.append(SparseRows(nothing, nothing, nothing, nothing, short=False))
        return made[-1]

    kept = CachedSparseRows(make)
    assert [kept() is made[-1] for _ in range(4)] == [True] * 4
    assert len(made) == 2
