"""A first linear layer on rows of which most values are 0: one-hot columns as lists of the columns that are 1.

A row of Adult has 107 values of which 14 are not 0. The layer's result is then a sum of a few rows of its weight
matrix, and the matrix' gradient a sum, for each column, over the rows that have a 1 there: no products at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffalm.engines.stacked.kernels import Model, Table, Weights, gathered
from ffalm.engines.stacked.network import Network
from ffalm.engines.stacked.passes import Layout, Pass, backward, forward
from ffalm.engines.stacked.schedule import Span, Steps

_MOST_ONES = 0.5  # a column with a larger share of ones is cheaper as a plain column
_WORTH_IT = 4  # columns saved per listed one


@dataclass(frozen=True)
class Columns:
    """Which feature columns hold only 0 and 1 and mostly 0, and how many ones a row has among them at most."""

    binary: Tensor  # column numbers
    plain: Tensor  # the other column numbers
    ones: int

    @property
    def worth_it(self) -> bool:
        """Whether summing rows of weights beats multiplying."""
        return 0 < self.ones * _WORTH_IT <= len(self.binary) < torch.iinfo(torch.int16).max


def binary_columns(parts: Sequence[Tensor]) -> Columns:
    """Look through all rows for columns of zeros and ones."""
    flat = [part.flatten(1).cpu() for part in parts]
    width = flat[0].shape[1]
    only, ones, rows = torch.ones(width, dtype=torch.bool), torch.zeros(width, dtype=torch.long), 0
    for part in flat:
        one = part == 1
        only &= (one | (part == 0)).all(0)
        ones += one.sum(0)
        rows += len(part)
    binary = only & (ones <= rows * _MOST_ONES)
    chosen = binary.nonzero().flatten()
    most = max((int(part.index_select(1, chosen).sum(1).max()) for part in flat if len(part)), default=0)
    return Columns(chosen, (~binary).nonzero().flatten(), most)


@dataclass(frozen=True)
class Listed:
    """The batches of some steps as lists, one line a (step, lane).

    `rows` are the reverse of `places`: for each code in turn the rows of the step that list it, those of a line's
    code c from `starts` of (line, c) on.
    """

    places: Tensor  # (line, row, listed) numbers of rows in the stacked matrices
    plain: Tensor  # (line, row, plain column)
    every: Tensor  # where each row's list starts
    rows: Tensor | None  # (line, ...) row numbers among all rows of the step
    starts: Tensor | None  # (line, code)


@dataclass(frozen=True)
class OneHot:
    """`Layered` with a first layer that looks weights up instead of multiplying; for the CPU.

    The first layer is kept in two pieces: a row for each binary column, with a row of zeros after the last for rows
    that have fewer ones than others; and a row for each plain column, the bias last, as if for a column of ones.
    """

    network: Network
    layout: Layout
    entered: str  # the first layer
    columns: Columns
    dtype: torch.dtype

    def table(self, parts: Sequence[Tensor]) -> Table:
        """One record a row: the list of its binary columns that are 1, then its plain columns.

        Both lie in one run of bytes, since a row that is fetched from far away in memory costs by the visit.
        """
        return (torch.cat([self._records(part.flatten(1).cpu()) for part in parts]),)

    def packed(self, models: Model) -> Weights:
        """The first layer in its two pieces, then the others, wide matrices turned round."""
        first = models[f"{self.entered}.weight"].transpose(1, 2)
        looked_up = first.index_select(1, self.columns.binary)
        plain = first.index_select(1, self.columns.plain)
        if self._biased:
            plain = torch.cat([plain, models[f"{self.entered}.bias"].unsqueeze(1)], 1)
        zeros = first.new_zeros(len(first), 1, first.shape[2])
        later, fixed = self.layout.packed(models, self._later)
        return Weights([torch.cat([looked_up, zeros], 1), plain, *later], fixed)

    def unpacked(self, weights: Weights) -> Model:
        """The first layer put together again, all turned back."""
        looked_up, plain, *later = weights.trained
        model = self.layout.unpacked(self._later, later, weights.fixed)
        if self._biased:
            model[f"{self.entered}.bias"] = plain[:, -1].contiguous()
            plain = plain[:, :-1]
        order = torch.cat([self.columns.binary, self.columns.plain]).argsort()
        whole = torch.cat([looked_up[:, :-1], plain], 1).index_select(1, order)
        model[f"{self.entered}.weight"] = whole.transpose(1, 2).contiguous()
        return {name: model[name] for name in self.layout.names}

    def settled(self, weights: Weights) -> Weights:
        """Unpacked and packed again."""
        return self.packed(self.unpacked(weights))

    def batches(self, table: Table, steps: Steps, training: bool) -> Listed:
        """All steps' lists at once; for training also the reverse lists."""
        records = gathered(table[0], steps.rows)
        codes = records[..., : self._code_bytes].contiguous().view(self._narrow)[..., : self.columns.ones]
        plain = records.view(self.dtype)[..., self._code_bytes // self.dtype.itemsize :]
        size = len(self.columns.binary) + 1
        places = codes.int().add_((steps.lanes.int() * size).view(-1, 1, 1))
        lines, rows, listed = codes.shape
        every = torch.arange(0, (steps.spans[0].lanes) * rows * listed, listed, dtype=torch.int32)
        if not training:
            return Listed(places, plain, every, None, None)
        codes = codes.reshape(lines, -1)
        order = np.argsort(codes.numpy(), axis=1, kind="stable")  # by radix, for numbers this small
        row_of = np.arange(rows, dtype=np.int32).repeat(listed)
        reverse = torch.from_numpy(row_of.take(order)).add_((steps.lanes.int() * rows).unsqueeze(1))
        cells = codes + torch.arange(0, lines * size, size).unsqueeze(1)
        counts = torch.bincount(cells.flatten(), minlength=lines * size).view(lines, size)
        starts = counts.cumsum(1).sub_(counts).add_((steps.lanes * (rows * listed)).unsqueeze(1))
        return Listed(places, plain, every, reverse, starts.int())

    def forward(self, weights: Weights, batches: Listed, span: Span, training: bool) -> tuple[Tensor, Any]:
        """Look up, multiply what is left of the first layer, and run the rest of the network."""
        looked_up, plain, *_ = weights.trained
        outputs = plain.shape[2]

        def enter() -> Tensor:
            places = batches.places[span.lines].flatten()
            summed = _sums(looked_up.view(-1, outputs), places, batches.every[: len(places) // batches.places.shape[2]])
            return summed.view(span.lanes, -1, outputs).baddbmm_(batches.plain[span.lines], plain)

        logits, passed = forward(self.network, self.layout, self._entries(weights), None, enter, taped=training)
        return logits, (passed, batches, span)

    def backward(self, weights: Weights, passed: tuple[Pass, Listed, Span], by_logits: Tensor) -> list[Tensor | None]:
        """For each copy and code, the sum of the gradients of the rows that list it; the rest as in `Layered`."""
        done, batches, span = passed
        assert batches.rows is not None
        assert batches.starts is not None
        rows, starts = batches.rows[span.lines].flatten(), batches.starts[span.lines].flatten()
        columns = batches.plain[span.lines].transpose(1, 2)
        first: list[Tensor | None] = [None, None]

        def leave(gradient: Tensor) -> None:
            summed = _sums(gradient.reshape(-1, gradient.shape[2]), rows, starts)
            by_code = summed.view(span.lanes, -1, gradient.shape[2])
            by_code[:, -1] = 0
            first[:] = by_code, torch.bmm(columns, gradient)

        found = backward(self.network, self.layout, self._entries(weights), done, by_logits, leave)
        return [*first, *(found.get(name) for name in self._later)]

    @property
    def _narrow(self) -> torch.dtype:
        """The smallest type that holds every code."""
        return torch.uint8 if len(self.columns.binary) <= torch.iinfo(torch.uint8).max else torch.int16

    @property
    def _biased(self) -> bool:
        return f"{self.entered}.bias" in self.layout.names

    @cached_property
    def _later(self) -> list[str]:
        """The parameters of the layers after the first."""
        return [name for name in self.layout.names if name not in (f"{self.entered}.weight", f"{self.entered}.bias")]

    def _entries(self, weights: Weights) -> Model:
        """The later layers' parameters by name."""
        return dict(zip(self._later, weights.trained[2:], strict=True))

    @property
    def _code_bytes(self) -> int:
        """Bytes of a row's list, filled up so that what follows is aligned."""
        item = self.dtype.itemsize
        return -(-self.columns.ones * self._narrow.itemsize // item) * item

    def _records(self, x: Tensor) -> Tensor:
        """Rows as runs of bytes; short lists are filled up with the number of the row of zeros."""
        row, column = x.index_select(1, self.columns.binary).nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=len(x))
        place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
        codes = torch.full(
            (len(x), self._code_bytes // self._narrow.itemsize), len(self.columns.binary), dtype=self._narrow
        )
        codes[row, place] = column.to(self._narrow)
        plain = x.index_select(1, self.columns.plain).to(self.dtype)
        if self._biased:
            plain = torch.cat([plain, plain.new_ones(len(x), 1)], 1)
        return torch.cat([codes.view(torch.uint8), plain.contiguous().view(torch.uint8)], 1)


def _sums(values: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Sums of listed rows of a matrix; each list goes from its start to the next one's."""
    summed: Tensor = torch.embedding_bag(values, rows, starts)[0]
    return summed
