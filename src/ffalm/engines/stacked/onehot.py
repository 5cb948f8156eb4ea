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

from ffalm.engines.stacked.kernels import Model, Table, Weights, gathered, joined, turned
from ffalm.engines.stacked.layers import affine, threshold_backward
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

    The first layer is kept in two pieces: a row for each binary column, with a row of zeros after the last for rows
    that have fewer ones than others; and a row for each plain column, the bias last, as if for a column of ones.
    """

    network: Network
    narrow: dict[str, bool]
    entered: str  # the first layer
    columns: Columns
    dtype: torch.dtype

    def table(self, parts: Sequence[Tensor]) -> Table:
        """For each row the list of its binary columns that are 1, and its plain columns."""
        pieces = [part.flatten(1) for part in parts]
        codes = torch.cat([self._codes(piece.index_select(1, self.columns.binary)) for piece in pieces])
        plain = joined([piece.index_select(1, self.columns.plain) for piece in pieces], self.dtype, codes.device)
        return codes, torch.cat([plain, plain.new_ones(len(plain), 1)], 1) if self._biased else plain

    def packed(self, models: Model) -> Weights:
        """The first layer in its two pieces, then the others, wide matrices turned round."""
        first = models[f"{self.entered}.weight"].transpose(1, 2)
        looked_up = first.index_select(1, self.columns.binary)
        plain = first.index_select(1, self.columns.plain)
        if self._biased:
            plain = torch.cat([plain, models[f"{self.entered}.bias"].unsqueeze(1)], 1)
        zeros = first.new_zeros(len(first), 1, first.shape[2])
        return Weights(
            [torch.cat([looked_up, zeros], 1), plain, *(turned(models[name], self.narrow[name]) for name in self._later)],
            [],
        )

    def unpacked(self, weights: Weights) -> Model:
        """The first layer put together again, all turned back."""
        looked_up, plain, *later = weights.trained
        model = {name: turned(entry, self.narrow[name]) for name, entry in zip(self._later, later, strict=True)}
        if self._biased:
            model[f"{self.entered}.bias"] = plain[:, -1].contiguous()
            plain = plain[:, :-1]
        order = torch.cat([self.columns.binary, self.columns.plain]).argsort()
        whole = torch.cat([looked_up[:, :-1], plain], 1).index_select(1, order)
        model[f"{self.entered}.weight"] = whole.transpose(1, 2).contiguous()
        return {name: model[name] for name in self.narrow}

    def logits(self, weights: Weights, table: Table, rows: Tensor, training: bool) -> Tensor:
        """Look up, multiply what is left of the first layer, and run the rest of the network."""
        looked_up, plain, *later = weights.trained
        entries = dict(zip(self._later, later, strict=True))

        def linear(name: str, rectified: bool, value: Tensor | None) -> Tensor:
            if value is None:
                codes, columns = (gathered(part, rows) for part in table)
                result: Tensor = _LookUp.apply(looked_up, plain, codes, columns, rectified)  # type: ignore[no-untyped-call]
                return result
            weight, bias = entries[f"{name}.weight"], entries.get(f"{name}.bias")
            return affine(value, weight, bias, self.narrow[f"{name}.weight"], rectified)

        return self.network.run(None, linear)

    @property
    def _biased(self) -> bool:
        return f"{self.entered}.bias" in self.narrow

    @property
    def _later(self) -> list[str]:
        """The parameters of the layers after the first."""
        return [name for name in self.narrow if name not in (f"{self.entered}.weight", f"{self.entered}.bias")]

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
    """For each copy and row, the sum of the listed rows of the copy's matrix, and the plain columns' product."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, plain: Tensor, codes: Tensor, columns: Tensor, rectified: bool) -> Tensor:
        """`matrix` is (copy, code, output), `codes` (copy, row, listed); gives (copy, row, output)."""
        copies, size, outputs = matrix.shape
        first = torch.arange(0, copies * size, size, dtype=codes.dtype).view(-1, 1, 1)
        places = codes + first
        summed = embedding_bag(places.flatten(0, 1), matrix.detach().reshape(-1, outputs), mode="sum")
        result = summed.view(copies, -1, outputs).baddbmm_(columns, plain)
        if rectified:
            result.relu_()
        ctx.save_for_backward(codes, places, columns, result if rectified else None)
        ctx.size = size
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """For each copy and code, the sum of the gradients of the rows that list it."""
        codes, places, columns, result = ctx.saved_tensors
        gradient = gradient.contiguous() if result is None else threshold_backward(gradient, result, 0)
        copies, rows, listed = codes.shape
        narrow = np.uint8 if ctx.size <= np.iinfo(np.uint8).max else np.uint16  # numpy sorts these by radix
        order = np.argsort(codes.view(copies, -1).numpy().astype(narrow), axis=1, kind="stable")
        row_of = np.arange(rows, dtype=np.int32).repeat(listed)
        listing = torch.from_numpy(row_of.take(order)) + torch.arange(0, copies * rows, rows).int().view(-1, 1)
        counts = torch.bincount(places.flatten(), minlength=copies * ctx.size)
        starts = (counts.cumsum(0) - counts).int()
        summed = embedding_bag(listing.flatten(), gradient.view(copies * rows, -1), starts, mode="sum")
        by_matrix = summed.view(copies, ctx.size, -1)
        by_matrix[:, -1] = 0
        return by_matrix, torch.bmm(columns.transpose(1, 2), gradient), None, None, None
