"""Rows as lists of the columns that are 1: how they are fetched, turned round and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffalm.engines.stacked.schedule import Steps


class SparseRows(NamedTuple):
    """The rows of one step as lists of the columns that are 1.

    `rows` are the reverse of `places`: for each code in turn the rows that list it, those of a lane's code c from
    `starts` of (lane, c) on.
    """

    places: Tensor  # (lane, row, listed) on one axis: numbers of rows in the stacked matrices
    plain: Tensor  # (lane, row, plain column)
    turned: Tensor  # (lane, plain column, row)
    every: Tensor  # where each row's list starts
    short: bool  # whether some lists are filled up with the row of zeros, which must stay so
    rows: Tensor | None = None  # row numbers among all rows of the step
    starts: Tensor | None = None  # (lane, code) on one axis


class CachedSparseRows:
    """Lists that are made on first use and kept from the second use on.

    Where all clients take part they are scored on the same rows in every round. Where a few do, rows seldom meet
    again in the same plan, and lists kept for each would be many.
    """

    def __init__(self, make: Callable[[], SparseRows]) -> None:
        self._make = make
        self._used = False
        self._made: SparseRows | None = None

    def __call__(self) -> SparseRows:
        if self._made is not None:
            return self._made
        made = self._make()
        if self._used:
            self._made = made
        self._used = True
        return made


Batch = SparseRows | CachedSparseRows


def fetched(records: Tensor, rows: Tensor) -> Tensor:
    """The records at these row numbers: by numpy, which moves a run of bytes as one."""
    whole = records.numpy().view(f"V{records.shape[1]}").ravel().take(rows.flatten().numpy())
    return torch.from_numpy(whole.view(np.uint8)).view(*rows.shape, -1)


def in_order_of(codes: Tensor) -> Tensor:
    """For each line of (row, listed) codes the numbers of its rows, those with the smallest codes first.

    Rows are sorted for each place of their lists on its own, for short sorts are quick. Where places hold the
    categories of one feature each, as in one-hot tables, that is all; a line in which they overlap is sorted whole.
    """
    lines, rows, _ = codes.shape
    bits = (rows - 1).bit_length()  # a number holds a code and then its row
    wide = torch.int32 if 8 * codes.itemsize + bits < 32 else torch.int64
    numbers = codes.transpose(1, 2).to(wide, memory_format=torch.contiguous_format)
    numbers.bitwise_left_shift_(bits).bitwise_or_(torch.arange(rows, dtype=wide))
    numbers.numpy().sort(-1)
    mixed = (numbers[:, :-1, -1] >= numbers[:, 1:, 0]).any(1).nonzero().flatten().numpy()
    if len(mixed):
        whole = numbers.view(lines, -1).numpy()
        whole[mixed] = np.sort(whole[mixed])
    return numbers.bitwise_and_(2**bits - 1).int()


def cut(steps: Steps, lines: Tensor) -> Sequence[Tensor]:
    """The lines of each step, on one axis."""
    each = lines[0].numel()
    return torch.split_with_sizes(lines.view(-1), [span.lanes * each for span in steps.spans])
