"""Ways of computing the logits of many copies of a model at once, each copy on its own rows.

A kernel lays features out once (`table`), lays models out for work (`packed`, `unpacked`), and gives the logits of
stacked weights on the rows whose numbers it is given. Everything else about training is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ffalm.engines.common import inputs
from ffalm.engines.stacked.network import Network
from ffalm.engines.stacked.passes import Layout, Pass, backward, forward
from ffalm.engines.stacked.schedule import Span, Steps

Table = tuple[Tensor, ...]
"""All rows of all clients, laid out as a kernel wants them; each tensor has one entry a row."""

Model = dict[str, Tensor]


@dataclass(frozen=True)
class Weights:
    """Copies of a model on the leading axis: what training moves, and what it leaves as it was."""

    trained: list[Tensor]
    fixed: list[Tensor]

    def select(self, copies: Tensor) -> Weights:
        """These copies, apart from the others."""
        return Weights(*([entry.index_select(0, copies) for entry in part] for part in (self.trained, self.fixed)))

    def first(self, copies: int) -> Weights:
        """A view of the first copies."""
        return Weights(*([entry[:copies] for entry in part] for part in (self.trained, self.fixed)))


class Kernel(Protocol):
    """How one kind of model is stacked."""

    def table(self, parts: Sequence[Tensor]) -> Table:
        """The features of several parts, one after the other, on the device."""
        ...

    def packed(self, models: Model) -> Weights:
        """Models with a leading axis of copies, laid out for work."""
        ...

    def unpacked(self, weights: Weights) -> Model:
        """The reverse of `packed`, up to rounding: every entry of the model's state by its name."""
        ...

    def settled(self, weights: Weights) -> Weights:
        """The weights as they come back from `unpacked` and `packed`, so that a run may start from any round."""
        ...

    def batches(self, table: Table, steps: Steps, training: bool) -> Any:
        """All that can be said of the steps' rows before any weights are known."""
        ...

    def forward(self, weights: Weights, batches: Any, span: Span, training: bool) -> tuple[Tensor, Any]:
        """Logits of shape (copy, row, label) for a step's rows, and what the way back needs."""
        ...

    def backward(self, weights: Weights, passed: Any, by_logits: Tensor) -> list[Tensor | None]:
        """The gradient by each of the trained entries, None for one that has no effect."""
        ...


@dataclass(frozen=True)
class Layered:
    """Linear layers as batched products."""

    network: Network
    layout: Layout
    dtype: torch.dtype
    device: torch.device

    def table(self, parts: Sequence[Tensor]) -> Table:
        """One matrix of rows."""
        return (joined([part.flatten(1) for part in parts], self.dtype, self.device),)

    def packed(self, models: Model) -> Weights:
        """In the network's working layout."""
        return Weights(*self.layout.packed(models, self.layout.names))

    def unpacked(self, weights: Weights) -> Model:
        """Out of the working layout."""
        return self.layout.unpacked(self.layout.names, weights.trained, weights.fixed)

    def settled(self, weights: Weights) -> Weights:
        """Unpacked and packed again."""
        return self.packed(self.unpacked(weights))

    def batches(self, table: Table, steps: Steps, training: bool) -> tuple[Table, Tensor]:
        """Rows are gathered step by step: all at once would hold the data twice."""
        return table, steps.rows

    def forward(
        self, weights: Weights, batches: tuple[Table, Tensor], span: Span, training: bool
    ) -> tuple[Tensor, Pass]:
        """Gather the rows and run the network on them."""
        (values,), rows = batches
        x = inputs(gathered(values, rows[span.lines]), self.dtype)
        return forward(self.network, self.layout, self._entries(weights), x, taped=training)

    def backward(self, weights: Weights, passed: Pass, by_logits: Tensor) -> list[Tensor | None]:
        """Back through the network."""
        found = backward(self.network, self.layout, self._entries(weights), passed, by_logits)
        return [found.get(name) for name in self.layout.names]

    def _entries(self, weights: Weights) -> Model:
        return dict(zip(self.layout.names, weights.trained, strict=True))


class Mapped:
    """Any `nn.Module`, mapped over copies by `torch.func`; slower than `Layered`, but knows no limits of its own."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype, self._device = dtype, device
        parameters = dict(model.named_parameters())
        self._trained = [name for name, entry in parameters.items() if entry.requires_grad]
        buffers = [name for name, _ in model.named_buffers()]
        self._fixed = [name for name, entry in parameters.items() if not entry.requires_grad] + buffers
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        first_name: dict[int, str] = {}
        known = {name: first_name.setdefault(id(entry), name) for name, entry in every}
        #: every entry of the state dict -> the name under which it is worked on: tied weights are one entry here
        self._saved = {name: known[name] for name in model.state_dict()}

    def table(self, parts: Sequence[Tensor]) -> Table:
        """The rows in their own shape; bytes stay bytes until they are used."""
        return (joined(parts, self._dtype, self._device),)

    def packed(self, models: Model) -> Weights:
        """The entries in a fixed order."""
        return Weights([models[name] for name in self._trained], [models[name] for name in self._fixed])

    def unpacked(self, weights: Weights) -> Model:
        """The entries by name."""
        known = self._named(weights)
        return {name: known[first] for name, first in self._saved.items()}

    def settled(self, weights: Weights) -> Weights:
        """The same: packing changes no number."""
        return weights

    def batches(self, table: Table, steps: Steps, training: bool) -> tuple[Table, Tensor]:
        """Rows are gathered step by step."""
        return table, steps.rows

    def forward(
        self, weights: Weights, batches: tuple[Table, Tensor], span: Span, training: bool
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        """Gather the rows and run the module on each copy's."""
        (values,), rows = batches
        self._model.train(training)
        with torch.inference_mode(not training):
            x = inputs(gathered(values, rows[span.lines]), self._dtype)
            free = [entry.detach().requires_grad_(training) for entry in weights.trained]
            logits = cast(Tensor, vmap(self._call)(self._named(Weights(free, weights.fixed)), x))
        return logits.detach(), (logits, free)

    def backward(self, weights: Weights, passed: tuple[Tensor, list[Tensor]], by_logits: Tensor) -> list[Tensor | None]:
        """By autograd: copies do not touch each other, so one pass gives each copy its own gradient."""
        logits, free = passed
        with torch.inference_mode(False):
            return list(torch.autograd.grad(logits, free, by_logits, allow_unused=True))

    def _call(self, entries: Model, x: Tensor) -> Any:
        return functional_call(self._model, entries, (x,))

    def _named(self, weights: Weights) -> Model:
        return dict(zip([*self._trained, *self._fixed], [*weights.trained, *weights.fixed], strict=True))


def gathered(values: Tensor, rows: Tensor) -> Tensor:
    """The entries at these row numbers, with the shape of the numbers in front."""
    return values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])


def joined(parts: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Parts one after the other on the device, as numbers of the model's type unless they are bytes.

    They are copied one by one into their place, so that the device never holds them twice.
    """
    kept = torch.uint8 if all(part.dtype == torch.uint8 for part in parts) else dtype
    together = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=kept, device=device)
    end = 0
    for part in parts:
        together[end : end + len(part)] = part if kept == torch.uint8 else inputs(part, dtype)
        end += len(part)
    return together
