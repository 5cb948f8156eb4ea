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

from ffalm.data.compact_features import CompactFeatures
from ffalm.engines.stacked.binary_columns import Columns, blocks
from ffalm.engines.stacked.kernels import Table, Weights, WeightViews
from ffalm.engines.stacked.layout import Blocks, Model, ParameterLayout
from ffalm.engines.stacked.network import Network
from ffalm.engines.stacked.passes import Linear, Pass, Passes, rectified
from ffalm.engines.stacked.schedule import Steps
from ffalm.engines.stacked.sparse_rows import Batch, CachedSparseRows, SparseRows, cut, fetched, in_order_of

_LISTED = "looked up"  # what `WeightViews` calls the first block, as rows of weights


@dataclass(frozen=True)
class OneHot:
    """`Layered` with a first layer that looks weights up instead of multiplying; for the CPU.

    The first layer is kept in two blocks: a row for each binary column, with a row of zeros after the last if some
    rows have fewer ones than others; and a row for each plain column, the bias last, as if for a column of ones. The
    second block goes on with the later layers.
    """

    network: Network
    layout: ParameterLayout
    entered: str  # the first layer
    columns: Columns
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        """That of the layout."""
        return self.layout.scale

    def table(self, parts: Sequence[Tensor]) -> Table:
        """One record per row: the list of its binary columns that are 1, then its plain columns.

        Both lie in one run of bytes, since a row that is fetched from far away in memory costs by the visit.
        """
        made, end = torch.empty(sum(map(len, parts)), self._record_bytes, dtype=torch.uint8), 0
        for block in blocks(parts):
            made[end : end + len(block)] = self._records(block)
            end += len(block)
        return (made,)

    def packed(self, models: Model) -> Weights:
        """The first layer in its two pieces, then the others."""
        trained, fixed = self.layout.packed(models)
        first = self._upright(trained[self._first])
        looked_up, plain = (first.index_select(1, order) for order in (self.columns.binary, self._plain_inputs))
        if not self.columns.even:
            looked_up = torch.cat([looked_up, first.new_zeros(len(first), 1, self._outputs)], 1)
        return Weights([looked_up.flatten(1), *self._blocks.filled({**trained, self._first: plain})], fixed)

    def unpacked(self, weights: Weights) -> Model:
        """The first layer put together again, all turned back."""
        looked_up, *blocks = weights.trained
        trained = self._blocks.views(blocks)
        listed = looked_up.view(len(looked_up), self._size, self._outputs)[:, : len(self.columns.binary)]
        whole = torch.cat([listed, trained[self._first]], 1).index_select(1, self._order)
        return self.layout.unpacked({**trained, self._first: self._upright(whole)}, weights.fixed)

    def opened(self, weights: Weights) -> WeightViews:
        """Views; under the first layer's name its plain piece."""
        looked_up, *blocks = weights.trained
        listed = looked_up.view(len(looked_up), self._size, self._outputs)
        return WeightViews(weights.trained, {_LISTED: listed, **self._blocks.views(blocks)})

    def batches(self, table: Table, steps: Steps, training: bool) -> Sequence[Batch]:
        """All steps' lists at once; for training also the reverse lists. One lane's are made when they are needed."""
        if not training and len(steps.rows) == 1:
            return [CachedSparseRows(lambda: self._alone(fetched(table[0], steps.rows)))]
        codes, plain = self._lists(fetched(table[0], steps.distinct.rows))
        places, every = self._places(steps.distinct.repeated(codes), steps.lanes)
        plain = steps.distinct.repeated(plain)
        starts = {lanes: every[: lanes * codes.shape[1]] for lanes in {span.lanes for span in steps.spans}}
        reverse: Sequence[Sequence[Any]] = [[None] * len(steps.spans)] * 2
        if training and self._outputs > 1:
            reverse = [cut(steps, part) for part in self._reversed(codes, steps)]
        return list(
            map(
                SparseRows,
                cut(steps, places),
                steps.cut(plain),
                steps.cut(plain.transpose(1, 2)),
                [starts[span.lanes] for span in steps.spans],
                self._short(codes, steps),
                *reverse,
            )
        )

    def _lists(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """The codes and the plain columns of each row of some lines."""
        words = records.view(self.dtype)  # larger pieces than bytes are quicker to copy
        listed = self._code_bytes // self.dtype.itemsize
        codes = words[..., :listed].contiguous().view(self._narrow)[..., : self.columns.ones]
        return codes, words[..., listed:]

    def _places(self, codes: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        """The codes' places in the stacked matrices, and where each row's list starts."""
        places = codes.int().add_((lanes.int() * self._size).view(-1, 1, 1))
        return places, torch.arange(0, places.numel(), self.columns.ones, dtype=torch.int32)

    def _short(self, codes: Tensor, steps: Steps) -> list[bool]:
        """For each step whether some of its lists are filled up, which are so at their end."""
        if self.columns.even:
            return [False] * len(steps.spans)
        lines = steps.distinct.repeated((codes[..., -1] == len(self.columns.binary)).any(1)).numpy()
        found: list[bool] = np.logical_or.reduceat(lines, [span.lines.start for span in steps.spans]).tolist()
        return found

    def _alone(self, records: Tensor) -> SparseRows:
        """A step of one lane."""
        codes, plain = self._lists(records)
        places, every = self._places(codes, torch.zeros(1, dtype=torch.int64))
        return SparseRows(places.flatten(), plain, plain.transpose(1, 2), every, short=False)

    def forward(self, opened: WeightViews, batch: Batch, training: bool) -> tuple[Tensor, tuple[Pass, SparseRows]]:
        """Look up, multiply what is left of the first layer, and run the rest of the network."""
        batch = batch if isinstance(batch, SparseRows) else batch()
        first, entries, plain = self._entry, opened.entries, batch.plain
        if self._outputs == 1:
            looked_up = entries[_LISTED].view(-1).index_select(0, batch.places)
            summed = looked_up.view(-1, self.columns.ones).sum(1)
        else:
            summed = _sums(entries[_LISTED].view(-1, self._outputs), batch.places, batch.every)
        value = summed.view(plain.shape[0], -1, self._outputs).baddbmm_(plain, entries[first.weight])
        if first.rectified:
            value.relu_()
        done = self._rest.forward(entries, {first.result: value.squeeze(2) if first.folded else value}, training)
        return done.values[self.network.exit], (done, batch)

    def backward(
        self, opened: WeightViews, passed: tuple[Pass, SparseRows], by_logits: Tensor, again: bool = False
    ) -> list[Tensor]:
        """For each copy and code, the sum of the gradients of the rows that list it; the rest as in `Layered`."""
        done, batch = passed
        first = self._entry
        found, by_value = self._rest.backward(opened.entries, done, by_logits, again)
        gradient = by_value[first.result]
        if first.rectified:
            gradient = rectified(gradient, done, first.result)
        if self._outputs == 1:
            gradient = gradient.unsqueeze(2) if first.folded else gradient
            every = gradient.expand(-1, -1, self.columns.ones).reshape(-1)
            summed = gradient.new_zeros(len(gradient) * self._size).index_add_(0, batch.places, every)
        else:
            assert batch.rows is not None
            assert batch.starts is not None
            summed = _sums(gradient.reshape(-1, self._outputs), batch.rows, batch.starts)
        by_code = summed.view(-1, self._size * self._outputs)
        if batch.short:
            by_code[:, -self._outputs :] = 0
        found[first.weight] = torch.bmm(batch.turned, gradient)
        return [by_code, *self._blocks.filled(found)]

    def _reversed(self, codes: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
        """For each line its rows in the order of their codes, and where each code's rows start."""
        lines, rows, listed = codes.shape
        reverse = steps.distinct.repeated(in_order_of(codes).view(lines, -1))
        cells = codes.reshape(lines, -1).int() + torch.arange(0, lines * self._size, self._size).int().unsqueeze(1)
        counts = torch.bincount(cells.flatten(), minlength=lines * self._size).view(lines, self._size)
        starts = steps.distinct.repeated(counts.cumsum(1).sub_(counts))
        lanes = steps.lanes.unsqueeze(1)
        return reverse.add_(lanes.int() * rows), starts.add_(lanes * rows * listed).int()

    @property
    def _narrow(self) -> torch.dtype:
        """The smallest type that holds every code."""
        codes = len(self.columns.binary)
        return next(kind for kind in (torch.uint8, torch.int16, torch.int32) if codes <= torch.iinfo(kind).max)

    @cached_property
    def _size(self) -> int:
        """Rows of the block that is looked up."""
        return len(self.columns.binary) + (not self.columns.even)

    @cached_property
    def _plain_inputs(self) -> Tensor:
        """The inputs of the first layer that are multiplied: plain columns, and the one that is always 1."""
        ones = [len(self.columns.binary) + len(self.columns.plain)] if self.layout.joined else []
        return torch.cat([self.columns.plain, torch.tensor(ones, dtype=torch.long)])

    @cached_property
    def _order(self) -> Tensor:
        """Where each input of the first layer lies among its listed and then its multiplied ones."""
        return torch.cat([self.columns.binary, self._plain_inputs]).argsort()

    @cached_property
    def _entry(self) -> Linear:
        """The first layer."""
        (step,) = (step for step in self.network.operations if step.linear == self.entered)
        return Linear.of(step, self.layout)

    @cached_property
    def _rest(self) -> Passes:
        """The way through what follows."""
        return Passes(self.network, self.layout, self.entered)

    @cached_property
    def _first(self) -> str:
        """The first layer's matrix."""
        return f"{self.entered}.weight"

    @cached_property
    def _outputs(self) -> int:
        """The first layer's."""
        shape = self.layout.shapes[self._first]
        return shape[0] if self._turned else shape[1]

    @cached_property
    def _turned(self) -> bool:
        """Whether the layout has the first layer's matrix as (output, input)."""
        return self._first in self.layout.narrow | self.layout.folded

    @cached_property
    def _blocks(self) -> Blocks:
        """Those after the one that is looked up: the plain piece of the first layer, and the later layers."""
        return Blocks({**self.layout.shapes, self._first: (len(self._plain_inputs), self._outputs)})

    def _upright(self, matrix: Tensor) -> Tensor:
        """The first layer's matrix from the layout to (input, output), or back."""
        return matrix.transpose(1, 2) if self._turned else matrix

    @property
    def _code_bytes(self) -> int:
        """Bytes of a row's list, filled up so that what follows is aligned."""
        item = self.dtype.itemsize
        return -(-self.columns.ones * self._narrow.itemsize // item) * item

    @property
    def _record_bytes(self) -> int:
        """Bytes of a row: its list, then the columns that are multiplied."""
        return self._code_bytes + len(self._plain_inputs) * self.dtype.itemsize

    def _records(self, x: Tensor) -> Tensor:
        """Rows as runs of bytes; short lists are filled up with the number of the row of zeros."""
        codes = torch.full(
            (len(x), self._code_bytes // self._narrow.itemsize), len(self.columns.binary), dtype=self._narrow
        )
        if isinstance(x, CompactFeatures):
            listed = self._listed_codes(x.columns(self.columns.binary))
            codes[:, : listed.shape[1]] = listed.to(self._narrow)
            plain = x.columns(self.columns.plain).dense().to(self.dtype)
        else:
            row, column = x.index_select(1, self.columns.binary).nonzero(as_tuple=True)
            counts = torch.bincount(row, minlength=len(x))
            place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
            codes[row, place] = column.to(self._narrow)
            plain = x.index_select(1, self.columns.plain).to(self.dtype)
        if self.layout.joined:
            plain = torch.cat([plain, plain.new_ones(len(x), 1)], 1)
        return torch.cat([codes.view(torch.uint8), plain.contiguous().view(torch.uint8)], 1)

    def _listed_codes(self, x: CompactFeatures) -> Tensor:
        """The lists of rows whose columns are all 0 or 1."""
        ones = torch.where(x.numbers == 1, x.places, -1)
        codes = torch.cat([x.codes.long(), ones], 1)
        return torch.where(codes < 0, x.shape[1], codes).sort(1).values[:, : self.columns.ones]


def _sums(values: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Sums of listed rows of a matrix; each list goes from its start to the next one's."""
    summed: Tensor = torch.embedding_bag(values, rows, starts)[0]
    return summed
