"""Any `nn.Module` over many copies of its weights, by `torch.func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ffalm.engines.common import inputs
from ffalm.engines.stacked.kernels import Table, Weights, WeightViews, gathered, joined
from ffalm.engines.stacked.layout import Model
from ffalm.engines.stacked.schedule import Steps


class Mapped:
    """A kernel that maps the module over copies; slower than `Layered`, but knows no limits of its own."""

    scale = 1.0

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype, self._device = dtype, device
        parameters = dict(model.named_parameters())
        self._trained = {name: entry.shape for name, entry in parameters.items() if entry.requires_grad}
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
        """The entries in a fixed order, each a block."""
        trained = [models[name].flatten(1) for name in self._trained]
        return Weights(trained, [models[name] for name in self._fixed])

    def unpacked(self, weights: Weights) -> Model:
        """The entries by name."""
        known = self._named(weights)
        return {name: known[first] for name, first in self._saved.items()}

    def opened(self, weights: Weights) -> WeightViews:
        """The entries by name."""
        return WeightViews(weights.trained, self._named(weights))

    def batches(self, table: Table, steps: Steps, training: bool) -> list[tuple[Tensor, Tensor]]:
        """Rows are gathered step by step."""
        return [(table[0], steps.rows[span.lines]) for span in steps.spans]

    def forward(
        self, opened: WeightViews, batch: tuple[Tensor, Tensor], training: bool
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        """Gather the rows and run the module on each copy's."""
        values, rows = batch
        self._model.train(training)
        with torch.inference_mode(not training):
            x = inputs(gathered(values, rows), self._dtype)
            free = {name: opened.entries[name].detach().requires_grad_(training) for name in self._trained}
            logits = cast(Tensor, vmap(self._call)({**opened.entries, **free}, x))
        return logits.detach(), (logits, list(free.values()))

    def backward(
        self, opened: WeightViews, passed: tuple[Tensor, list[Tensor]], by_logits: Tensor, again: bool = False
    ) -> list[Tensor | None]:
        """By autograd: copies do not touch each other, so one pass gives each copy its own gradient."""
        logits, free = passed
        with torch.inference_mode(False):
            found = torch.autograd.grad(logits, free, by_logits, retain_graph=again, allow_unused=True)
        return [None if gradient is None else gradient.flatten(1) for gradient in found]

    def _call(self, entries: Model, x: Tensor) -> Any:
        return functional_call(self._model, entries, (x,))

    def _named(self, weights: Weights) -> Model:
        shaped = [
            block.view(len(block), *shape) for block, shape in zip(weights.trained, self._trained.values(), strict=True)
        ]
        return dict(zip([*self._trained, *self._fixed], [*shaped, *weights.fixed], strict=True))
