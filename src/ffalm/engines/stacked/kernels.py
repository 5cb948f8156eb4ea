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
from ffalm.engines.stacked.layers import affine
from ffalm.engines.stacked.network import Network

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
        """The reverse of `packed`: every entry of the model's state by its name."""
        ...

    def logits(self, weights: Weights, table: Table, rows: Tensor, training: bool) -> Tensor:
        """Logits of shape (copy, row, label) for row numbers of shape (copy, row)."""
        ...


@dataclass(frozen=True)
class Layered:
    """Linear layers as batched products."""

    network: Network
    narrow: dict[str, bool]  # every parameter by name, and whether it is a matrix that is left as it is
    dtype: torch.dtype
    device: torch.device

    def table(self, parts: Sequence[Tensor]) -> Table:
        """One matrix of rows."""
        return (joined([part.flatten(1) for part in parts], self.dtype, self.device),)

    def packed(self, models: Model) -> Weights:
        """Wide matrices turned round."""
        return Weights([turned(models[name], narrow) for name, narrow in self.narrow.items()], [])

    def unpacked(self, weights: Weights) -> Model:
        """Wide matrices turned back."""
        entries = zip(self.narrow.items(), weights.trained, strict=True)
        return {name: turned(entry, narrow) for (name, narrow), entry in entries}

    def logits(self, weights: Weights, table: Table, rows: Tensor, training: bool) -> Tensor:
        """Gather the rows and run the network on them."""
        x = inputs(gathered(table[0], rows), self.dtype)
        entries = dict(zip(self.narrow, weights.trained, strict=True))

        def linear(name: str, rectified: bool, value: Tensor | None) -> Tensor:
            assert value is not None
            weight, bias = entries[f"{name}.weight"], entries.get(f"{name}.bias")
            return affine(value, weight, bias, self.narrow[f"{name}.weight"], rectified)

        return self.network.run(x, linear)


class Mapped:
    """Any `nn.Module`, mapped over copies by `torch.func`; slower than `Layered`, but knows no limits of its own."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype, self._device = dtype, device
        parameters = dict(model.named_parameters())
        self._trained = [name for name, entry in parameters.items() if entry.requires_grad]
        buffers = [name for name, _ in model.named_buffers()]
        self._fixed = [name for name, entry in parameters.items() if not entry.requires_grad] + buffers
        first_name: dict[int, str] = {}
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        saved = model.state_dict().keys()
        #: every entry of the state dict -> the name under which it is worked on: tied weights are one entry here
        self._saved = {name: first_name.setdefault(id(entry), name) for name, entry in every}
        self._saved = {name: self._saved[name] for name in saved}

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

    def logits(self, weights: Weights, table: Table, rows: Tensor, training: bool) -> Tensor:
        """Gather the rows and run the module on each copy's."""
        x = inputs(gathered(table[0], rows), self._dtype)
        self._model.train(training)
        return cast(Tensor, vmap(self._call)(self._named(weights), x))

    def _call(self, entries: Model, x: Tensor) -> Any:
        return functional_call(self._model, entries, (x,))

    def _named(self, weights: Weights) -> Model:
        return dict(zip([*self._trained, *self._fixed], [*weights.trained, *weights.fixed], strict=True))


def turned(entry: Tensor, as_it_is: bool) -> Tensor:
    """Stacked matrices with their two axes exchanged; stacked vectors as they are."""
    return entry if as_it_is or entry.ndim < 3 else entry.transpose(1, 2).contiguous()


def gathered(values: Tensor, rows: Tensor) -> Tensor:
    """The entries at these row numbers, with the shape of the numbers in front."""
    return values.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def joined(parts: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Parts one after the other on the device, as numbers of the model's type unless they are bytes."""
    return torch.cat([part.to(device, part.dtype if part.dtype == torch.uint8 else dtype) for part in parts])
