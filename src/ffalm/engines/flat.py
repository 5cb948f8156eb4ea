"""A model whose floating numbers lie in one vector: copying or averaging it is one operation instead of hundreds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Flat:
    """Moves a module's parameters and floating buffers into one vector; the module goes on using them there.

    Models are passed around as dictionaries of views of such a vector, so that everybody else sees a plain state.
    """

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict(keep_vars=True)
        self._floats = {name: entry for name, entry in state.items() if entry.dtype.is_floating_point}
        self._others = {name: entry for name, entry in state.items() if name not in self._floats}
        self._order = list(state)
        kinds = {(entry.dtype, entry.device) for entry in self._floats.values()}
        assert len(kinds) == 1, "a model computes in one floating type on one device"
        self._vector = torch.cat([_in_memory_order(entry) for entry in self._floats.values()])
        for name, view in self._views(self._vector).items():
            self._floats[name].data = view

    def load(self, model: dict[str, Tensor]) -> None:
        """Write a state into the module."""
        source = self._vector_of(model)
        if source is None:
            for name, entry in self._floats.items():
                entry.data.copy_(model[name])
        else:
            self._vector.copy_(source)
        for name, entry in self._others.items():
            entry.copy_(model[name])

    def copied(self) -> dict[str, Tensor]:
        """The module's state now, apart from the module."""
        return self._state(self._vector.clone(), {name: entry.clone() for name, entry in self._others.items()})

    def average(self, models: Sequence[dict[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of states that `copied` gave, in float64 and in their order; counters take the largest."""
        total = torch.zeros_like(self._vector, dtype=torch.float64)
        for model, weight in zip(models, weights.tolist(), strict=True):
            vector = self._vector_of(model)
            assert vector is not None
            total.add_(vector, alpha=weight)
        others = {name: torch.stack([model[name] for model in models]).amax(0) for name in self._others}
        return self._state(total.to(self._vector.dtype), others)

    def _state(self, vector: Tensor, others: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {**self._views(vector), **others}
        return {name: found[name] for name in self._order}

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        """Each entry's part of a vector, in the entry's own shape and memory layout."""
        views, first = {}, 0
        for name, entry in self._floats.items():
            views[name] = vector.as_strided(entry.shape, entry.stride(), first)
            first += entry.numel()
        return views

    def _vector_of(self, model: dict[str, Tensor]) -> Tensor | None:
        """The vector of which a state's entries are views; None for a state from elsewhere."""
        first = next(iter(self._floats))
        base = model[first]._base
        same = base is not None and base.shape == self._vector.shape and base.dtype == self._vector.dtype
        return base if same and base is not None and base.device == self._vector.device else None


def _in_memory_order(entry: Tensor) -> Tensor:
    """A dense tensor's numbers as they lie in memory."""
    return entry.detach().as_strided((entry.numel(),), (1,), entry.storage_offset())
