"""Encoded features of a table in little memory: the numbers, and for each category the index of the feature that is 1.

One-hot columns are mostly zeros: of Adult's 107 features 14 are not 0 in a row, of 50,000 categories one per column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ffalm.errors import UserError

#: Features that would take more bytes are not kept dense.
DENSE_BYTES = 2**26
_BLOCK_VALUES = 2**21  # feature values that are made dense at a time
_READ_ONLY = "Features of a large table are kept compact and cannot be changed in place: change a copy, `x.dense()`."
_aten = torch.ops.aten


class CompactFeatures(Tensor):
    """A (rows, features) float32 tensor that is made dense when used; indexing gives plain tensors.

    x[row, places[k]] = numbers[row, k]; x[row, codes[row, c]] = 1 for every categorical column c; else 0.
    """

    numbers: Tensor  # (rows, numeric columns)
    places: Tensor  # the feature that each numeric column is
    codes: Tensor  # (rows, categorical columns): the feature that is 1, -1 where the category is unknown

    @staticmethod
    def __new__(cls, numbers: Tensor, places: Tensor, codes: Tensor, width: int) -> CompactFeatures:
        """Without a copy; `width` is the number of features."""
        made: CompactFeatures = torch.Tensor._make_wrapper_subclass(cls, (len(numbers), width), dtype=numbers.dtype)
        made.numbers, made.places, made.codes = numbers, places, codes
        return made

    def __init__(self, numbers: Tensor, places: Tensor, codes: Tensor, width: int) -> None:
        pass  # done in `__new__`

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CompactFeatures({self.shape[0]} rows, {self.shape[1]} features)"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return CompactFeatures, (self.numbers, self.places, self.codes, self.shape[1])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Rows are taken from what is stored; for any other operation all rows are made dense."""
        kwargs = kwargs or {}
        if func in (_aten.detach.default, _aten.clone.default):
            own = args[0]
            return CompactFeatures(func(own.numbers), own.places, func(own.codes), own.shape[1])
        if func is _aten.new_empty.default:
            return func(args[0].numbers, *args[1:], **kwargs)
        if func is _aten.index_select.default and args[1] == 0:
            own, _, rows = args
            return own[rows]
        if func._schema.is_mutable and isinstance(args[0], CompactFeatures):
            raise UserError(_READ_ONLY)
        args, kwargs = tree_map_only(CompactFeatures, CompactFeatures.dense, (args, kwargs))
        return func(*args, **kwargs)

    def __getitem__(self, rows: Any) -> Tensor:
        """Rows by index, slice or mask; an array of indices gives rows in its shape."""
        if isinstance(rows, tuple) or rows is None or rows is Ellipsis:
            return self.dense()[rows]
        numbers, codes = self.numbers[rows], self.codes[rows]
        shape = numbers.shape[:-1]  # an integer index removes the row axis
        flat = (one.reshape(shape.numel(), one.shape[-1]) for one in (numbers, codes))
        return self._dense(*flat).reshape(*shape, self.shape[1])

    def __setitem__(self, rows: Any, values: Any) -> None:
        """Refused: the values would go into a copy."""
        raise UserError(_READ_ONLY)

    def __dlpack__(self, **settings: Any) -> Any:
        """All rows, for another library: there is no storage to share."""
        return self.dense().__dlpack__(**settings)

    def dense(self) -> Tensor:
        """All rows as a plain tensor."""
        return self._dense(self.numbers, self.codes)

    def columns(self, chosen: Tensor) -> CompactFeatures:
        """The same rows with these features only, in this order."""
        order = torch.full((self.shape[1] + 1,), -1)  # the code -1 finds the last one
        order[chosen] = torch.arange(len(chosen))
        kept = order[self.places] >= 0
        codes = order.to(self.codes.dtype)[self.codes.long()]
        return CompactFeatures(self.numbers[:, kept], order[self.places[kept]], codes, len(chosen))

    def numpy(self, *, force: bool = False) -> Any:
        """All rows as an array."""
        return self.dense().numpy()

    def share_memory_(self) -> CompactFeatures:
        """Move the stored tensors into shared memory; torch would look for a storage, and there is none."""
        for one in (self.numbers, self.places, self.codes):
            one.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def tolist(self) -> Any:
        """All rows as lists."""
        return self.dense().tolist()

    def _dense(self, numbers: Tensor, codes: Tensor) -> Tensor:
        made = numbers.new_zeros(len(numbers), self.shape[1])
        made[:, self.places] = numbers
        ones = codes.long() + torch.arange(len(codes)).unsqueeze(1) * self.shape[1]
        made.view(-1)[ones[codes >= 0]] = 1
        return made


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The rows at these indices; many rows of compact features stay compact."""
    if not isinstance(x, CompactFeatures) or x.itemsize * x.shape[1] * len(rows) <= DENSE_BYTES:
        return x[rows]
    return CompactFeatures(x.numbers[rows], x.places, x.codes[rows], x.shape[1])


def as_tensors(x: Tensor) -> dict[str, Tensor]:
    """Features as plain tensors by name, for a file."""
    if not isinstance(x, CompactFeatures):
        return {"x": x}
    return {"numbers": x.numbers, "places": x.places, "codes": x.codes, "width": torch.tensor(x.shape[1])}


def from_tensors(stored: Mapping[str, Tensor]) -> Tensor:
    """The features that `as_tensors` gave; raises KeyError if some are missing."""
    if "x" in stored:
        return stored["x"]
    return CompactFeatures(stored["numbers"], stored["places"], stored["codes"], int(stored["width"]))


def row_blocks(x: Tensor, step: int = 1) -> Iterator[Tensor]:
    """Every `step`-th row in plain tensors of a few MB each, so that the whole is never made dense."""
    size = max(1, _BLOCK_VALUES // max(1, x[:1].numel()))
    return (x[first : first + size * step : step] for first in range(0, len(x), size * step))


def row_bytes(x: Tensor, step: int = 1) -> Iterator[memoryview]:
    """The bytes of every `step`-th row, for a checksum; the same for compact and for plain features."""
    for block in row_blocks(x, step):
        yield block.contiguous().cpu().view(torch.uint8).numpy().data


def measured(x: Tensor) -> Tensor:
    """The values to check for NaN: of compact features only the numbers, since the rest is 0 or 1."""
    return x.numbers if isinstance(x, CompactFeatures) else x


def stored_bytes(x: Tensor) -> int:
    """How much memory features take."""
    return x.numbers.nbytes + x.codes.nbytes if isinstance(x, CompactFeatures) else x.nbytes
