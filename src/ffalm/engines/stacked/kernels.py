"""Ways of computing the logits of many copies of a model at once, each copy on its own rows.

A kernel lays features out once (`table`), lays models out for work (`packed`, `unpacked`), and gives the logits of
stacked weights on the rows whose numbers it is given. Everything else about training is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ffalm.data.compact_features import CompactFeatures, row_blocks
from ffalm.engines.common import inputs
from ffalm.engines.stacked.layout import Blocks, Model, ParameterLayout
from ffalm.engines.stacked.network import Network
from ffalm.engines.stacked.passes import Pass, Passes
from ffalm.engines.stacked.schedule import Steps

Table = tuple[Tensor, ...]
"""All rows of all clients, laid out as a kernel wants them; each tensor has one entry per row."""


@dataclass(frozen=True)
class Weights:
    """Copies of a model on the leading axis: what training moves, in blocks of (copy, number), and what it leaves."""

    trained: list[Tensor]
    fixed: list[Tensor]

    def select(self, copies: Tensor) -> Weights:
        """These copies, apart from the others."""
        return Weights(*([entry.index_select(0, copies) for entry in part] for part in (self.trained, self.fixed)))


@dataclass(frozen=True)
class WeightViews:
    """Weights as they are worked on: as blocks, and each entry by its name."""

    blocks: list[Tensor]
    entries: Model

    def __getitem__(self, copies: slice) -> WeightViews:
        """Some of the copies, where they lie."""
        entries = {name: entry[copies] for name, entry in self.entries.items()}
        return WeightViews([block[copies] for block in self.blocks], entries)


class Kernel(Protocol):
    """How one kind of model is stacked."""

    @property
    def scale(self) -> float:
        """The factor that turns a single number for two logits into their difference."""
        ...

    def table(self, parts: Sequence[Tensor]) -> Table:
        """The features of several parts, one after the other, on the device."""
        ...

    def packed(self, models: Model) -> Weights:
        """Models with a leading axis of copies, laid out for work."""
        ...

    def unpacked(self, weights: Weights) -> Model:
        """The reverse of `packed`, up to rounding: every entry of the model's state by its name."""
        ...

    def opened(self, weights: Weights) -> WeightViews:
        """The weights as `forward` and `backward` take them, where they lie."""
        ...

    def batches(self, table: Table, steps: Steps, training: bool) -> Sequence[Any]:
        """What each step needs of its rows, as far as it does not depend on weights."""
        ...

    def forward(self, opened: WeightViews, batch: Any, training: bool) -> tuple[Tensor, Any]:
        """Logits of shape (copy, row, label), or (copy, row) for two labels; and what the way back needs."""
        ...

    def backward(
        self, opened: WeightViews, passed: Any, by_logits: Tensor, again: bool = False
    ) -> Sequence[Tensor | None]:
        """The gradient by each of the trained blocks, None for one that has no effect; `again`: to be called again."""
        ...


@dataclass(frozen=True)
class Layered:
    """Linear layers as batched products."""

    network: Network
    layout: ParameterLayout
    dtype: torch.dtype
    device: torch.device

    @property
    def scale(self) -> float:
        """That of the layout."""
        return self.layout.scale

    def table(self, parts: Sequence[Tensor]) -> Table:
        """One matrix of rows, with a column of ones where the first layer's bias is an input."""
        flat = [part.flatten(1) for part in parts]
        return (joined(flat, self.dtype, self.device, ones=self.layout.joined is not None),)

    def packed(self, models: Model) -> Weights:
        """In the network's working layout."""
        trained, fixed = self.layout.packed(models)
        return Weights(self._blocks.filled(trained), fixed)

    def unpacked(self, weights: Weights) -> Model:
        """Out of the working layout."""
        return self.layout.unpacked(self._blocks.views(weights.trained), weights.fixed)

    def opened(self, weights: Weights) -> WeightViews:
        """Views."""
        return WeightViews(weights.trained, self._blocks.views(weights.trained))

    def batches(self, table: Table, steps: Steps, training: bool) -> list[Callable[[], Tensor]]:
        """Rows are gathered step by step: all at once would hold the data twice. One lane's rows in order lie there."""
        (values,) = table
        run = None if training else steps.run()
        if run is not None:
            return [lambda: values[run].unsqueeze(0)]
        return [partial(gathered, values, rows) for rows in steps.cut(steps.rows)]

    def forward(self, opened: WeightViews, batch: Callable[[], Tensor], training: bool) -> tuple[Tensor, Pass]:
        """Run the network on the rows."""
        rows = inputs(batch(), self.dtype)
        done = self._passes.forward(opened.entries, {self.network.entry: rows}, taped=training)
        return done.values[self.network.exit], done

    def backward(self, opened: WeightViews, passed: Pass, by_logits: Tensor, again: bool = False) -> list[Tensor]:
        """Back through the network."""
        found, _ = self._passes.backward(opened.entries, passed, by_logits, again)
        return self._blocks.filled(found)

    @cached_property
    def _passes(self) -> Passes:
        return Passes(self.network, self.layout)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.layout.shapes)


def gathered(values: Tensor, rows: Tensor) -> Tensor:
    """The entries at these row numbers, with the shape of the numbers in front."""
    return values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])


def joined(parts: Sequence[Tensor], dtype: torch.dtype, device: torch.device, ones: bool = False) -> Tensor:
    """Parts one after the other on the device, in the model's type unless they are bytes.

    They are copied one by one, so that the device never holds them twice. `ones` appends a column of ones.
    """
    kept = torch.uint8 if all(part.dtype == torch.uint8 for part in parts) else dtype
    shape = (parts[0].shape[1] + 1,) if ones else parts[0].shape[1:]
    together = torch.empty(sum(map(len, parts)), *shape, dtype=kept, device=device)
    if ones:
        together[:, -1] = 255 if kept == torch.uint8 else 1
    filled = together[:, :-1] if ones else together
    end = 0
    for part in parts:
        for rows in row_blocks(part) if isinstance(part, CompactFeatures) else [part]:
            filled[end : end + len(rows)] = rows if kept == torch.uint8 else inputs(rows, dtype)
            end += len(rows)
    return together
