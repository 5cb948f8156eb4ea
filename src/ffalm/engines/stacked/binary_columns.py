"""Which feature columns are worth listing: those of zeros and ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.data.compact_features import CompactFeatures, measured

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
        return 0 < self.ones * _WORTH_IT <= len(self.binary) < torch.iinfo(torch.int32).max


def binary_columns(parts: Sequence[Tensor]) -> Columns:
    """Look through all rows for columns of zeros and ones.

    Columns that are mostly 1 are cheaper as plain ones, unless the longest list is as long without them: so it is where
    every category has its column.
    """
    width, rows = parts[0].flatten(1).shape[1], sum(map(len, parts))
    only, ones = torch.ones(width, dtype=torch.bool), torch.zeros(width, dtype=torch.long)
    for part in blocks(parts):
        binary, found = _binary(part)
        only &= binary
        ones += found
    every = _listed(parts, only)
    if every.even:
        return every
    rare = _listed(parts, only & (ones <= rows * _MOST_ONES))
    return every if every.ones == rare.ones else rare


def blocks(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Rows of features, a few thousand at a time: what is made of them on the way never amounts to the whole table."""
    for part in parts:
        if isinstance(part, CompactFeatures):
            numbers, codes = torch.split(part.numbers, _BLOCK), torch.split(part.codes, _BLOCK)
            for block in zip(numbers, codes, strict=True):
                yield CompactFeatures(block[0], part.places, block[1], part.shape[1])
        else:
            yield from torch.split(part.flatten(1).cpu(), _BLOCK)


def _binary(part: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns hold only 0 and 1, and how many ones each holds."""
    one = measured(part) == 1
    binary, ones = (one | (measured(part) == 0)).all(0), one.sum(0)
    if not isinstance(part, CompactFeatures):
        return binary, ones
    coded = torch.bincount(part.codes[part.codes >= 0].long(), minlength=part.shape[1])
    return coded.new_ones(len(coded)).bool().index_put_((part.places,), binary), coded.index_add_(0, part.places, ones)


def _listed(parts: Sequence[Tensor], listed: Tensor) -> Columns:
    chosen = listed.nonzero().flatten()
    counts = [_ones(part, chosen) for part in blocks(parts) if len(part)]
    most = max((int(count.max()) for count in counts), default=0)
    return Columns(chosen, (~listed).nonzero().flatten(), most, all(bool((count == most).all()) for count in counts))


def _ones(part: Tensor, chosen: Tensor) -> Tensor:
    """How many ones each row has in these columns of zeros and ones."""
    if not isinstance(part, CompactFeatures):
        return part.index_select(1, chosen).sum(1)
    own = part.columns(chosen)
    return own.numbers.sum(1) + (own.codes >= 0).sum(1)
