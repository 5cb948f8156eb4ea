"""Which feature columns are worth listing: those of zeros and ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_ONES = 0.5  # a column with a larger share of ones is cheaper as a plain column
_WORTH_IT = 4  # columns saved per listed one
_BLOCK = 8192  # rows that are looked at together


@dataclass(frozen=True)
class Columns:
    """Which feature columns hold only 0 and 1, and how many ones a row has among those that are listed."""

    binary: Tensor  # numbers of the columns that are listed
    plain: Tensor  # the other column numbers
    ones: int  # at most
    even: bool  # whether every row has as many

    @property
    def worth_it(self) -> bool:
        """Whether summing rows of weights beats multiplying."""
        return 0 < self.ones * _WORTH_IT <= len(self.binary) < torch.iinfo(torch.int16).max


def binary_columns(parts: Sequence[Tensor]) -> Columns:
    """Look through all rows for columns of zeros and ones.

    Columns that are mostly 1 are cheaper as plain ones, unless the longest list is as long without them: so it is where
    every category has its column.
    """
    flat = blocks(parts)
    width = flat[0].shape[1]
    only, ones, rows = torch.ones(width, dtype=torch.bool), torch.zeros(width, dtype=torch.long), 0
    for part in flat:
        one = part == 1
        only &= (one | (part == 0)).all(0)
        ones += one.sum(0)
        rows += len(part)
    every = _listed(flat, only)
    if every.even:
        return every
    rare = _listed(flat, only & (ones <= rows * _MOST_ONES))
    return every if every.ones == rare.ones else rare


def blocks(parts: Sequence[Tensor]) -> list[Tensor]:
    """Rows of features, a few thousand at a time: what is made of them on the way never amounts to the whole table."""
    return [block for part in parts for block in torch.split(part.flatten(1).cpu(), _BLOCK)]


def _listed(parts: Sequence[Tensor], listed: Tensor) -> Columns:
    chosen = listed.nonzero().flatten()
    counts = [part.index_select(1, chosen).sum(1) for part in parts if len(part)]
    most = max((int(count.max()) for count in counts), default=0)
    return Columns(chosen, (~listed).nonzero().flatten(), most, all(bool((count == most).all()) for count in counts))
