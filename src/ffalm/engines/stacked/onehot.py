"""A first linear layer on rows of which most values are 0: one-hot columns as lists of the columns that are 1.

A row of Adult has 107 values of which 14 are not 0. The layer's result is then a sum of a few rows of its weight
matrix, and the matrix' gradient a sum, for each column, over the rows that have a 1 there: no products at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ffalm.engines.stacked.kernels import Model, Table, Weights, affine, gathered, joined, turned
from ffalm.engines.stacked.network import Network

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
        return 0 < self.ones * _WORTH_IT <= len(self.binary) < np.iinfo(np.uint16).max


def binary_columns(parts: Sequence[Tensor]) -> Columns:
    """Look through all rows for columns of zeros and ones."""
    flat = [part.flatten(1) for part in parts]
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
class OneHot:
    """`Layered` with a first layer that looks weights up instead of multiplying; for the CPU.

    The first layer's matrix is kept in two pieces: a row for each binary column, with a row of zeros after the last
    for rows that have fewer ones than others, and a row for each plain column.
    """

    network: Network
    names: tuple[str, ...]
    entered: str  # the first layer
    columns: Columns
    dtype: torch.dtype

    def table(self, parts: Sequence[Tensor]) -> Table:
        """For each row the list of its binary columns that are 1, and its plain columns."""
        pieces = [part.flatten(1) for part in parts]
        codes = torch.cat([self._codes(piece.index_select(1, self.columns.binary)) for piece in pieces])
        plain = [piece.index_select(1, self.columns.plain) for piece in pieces]
        return codes, joined(plain, self.dtype, codes.device)

    def packed(self, models: Model) -> Weights:
        """Matrices turned round, the first cut in two."""
        trained = []
        for name in self.names:
            entry = turned(models[name])
            if name == f"{self.entered}.weight":
                looked_up = entry.index_select(1, self.columns.binary)
                zeros = entry.new_zeros(len(entry), 1, entry.shape[2])
                trained += [torch.cat([looked_up, zeros], 1), entry.index_select(1, self.columns.plain)]
            else:
                trained.append(entry)
        return Weights(trained, [])

    def unpacked(self, weights: Weights) -> Model:
        """The first matrix put together again, all turned back."""
        entries = self._named(weights)
        looked_up, plain = entries.pop(""), entries[f"{self.entered}.weight"]
        order = torch.cat([self.columns.binary, self.columns.plain]).argsort()
        entries[f"{self.entered}.weight"] = torch.cat([looked_up[:, :-1], plain], 1).index_select(1, order)
        return {name: turned(entries[name]) for name in self.names}

    def logits(self, weights: Weights, table: Table, rows: Tensor) -> Tensor:
        """Look up, multiply what is left of the first layer, and run the rest of the network."""
        codes, plain = table
        entries = self._named(weights)

        def linear(name: str, value: Tensor | None) -> Tensor:
            weight, bias = entries[f"{name}.weight"], entries.get(f"{name}.bias")
            if value is not None:
                return affine(value, weight, bias)
            summed: Tensor = _LookUp.apply(entries[""], gathered(codes, rows))  # type: ignore[no-untyped-call]
            if plain.shape[1]:
                return summed + affine(gathered(plain, rows), weight, bias)
            return summed if bias is None else summed + bias.unsqueeze(1)

        return self.network.run(None, linear)

    def _named(self, weights: Weights) -> Model:
        """Working entries by name; the looked-up piece of the first matrix has the empty name."""
        names: list[str] = []
        for name in self.names:
            names += ["", name] if name == f"{self.entered}.weight" else [name]
        return dict(zip(names, weights.trained, strict=True))

    def _codes(self, binary: Tensor) -> Tensor:
        """Numbers of the columns that are 1, filled up with the number of the row of zeros."""
        row, column = binary.nonzero(as_tuple=True)
        starts = torch.zeros(len(binary) + 1, dtype=torch.long)
        starts[1:] = torch.bincount(row, minlength=len(binary)).cumsum(0)
        place = torch.arange(len(row)) - starts[row]
        codes = torch.full((len(binary), self.columns.ones), len(self.columns.binary), dtype=torch.int32)
        codes[row, place] = column.int()
        return codes


class _LookUp(torch.autograd.Function):
    """For each copy and row, the sum of the listed rows of the copy's matrix."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, codes: Tensor) -> Tensor:
        """`matrix` is (copy, code, output), `codes` (copy, row, listed); gives (copy, row, output)."""
        copies, size, outputs = matrix.shape
        first = torch.arange(0, copies * size, size, dtype=codes.dtype).view(-1, 1, 1)
        ctx.codes, ctx.places, ctx.size = codes, codes + first, size
        flat = matrix.detach().reshape(-1, outputs)
        return embedding_bag(ctx.places.flatten(0, 1), flat, mode="sum").view(copies, -1, outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """For each copy and code, the sum of the gradients of the rows that list it."""
        copies, rows, listed = ctx.codes.shape
        narrow = np.uint8 if ctx.size <= np.iinfo(np.uint8).max else np.uint16  # numpy sorts these by radix
        keys = ctx.codes.view(copies, -1).numpy().astype(narrow)
        order = np.argsort(keys, axis=1, kind="stable")
        row_of = np.arange(rows, dtype=np.int32).repeat(listed)
        sorted_rows = torch.from_numpy(row_of.take(order)) + torch.arange(0, copies * rows, rows).int().view(-1, 1)
        counts = torch.bincount(ctx.places.flatten(), minlength=copies * ctx.size)
        starts = (counts.cumsum(0) - counts).int()
        flat = gradient.contiguous().view(copies * rows, -1)
        summed = embedding_bag(sorted_rows.flatten(), flat, starts, mode="sum").view(copies, ctx.size, -1)
        summed[:, -1] = 0
        return summed, None
