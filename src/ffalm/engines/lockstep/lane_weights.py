"""Copies of one model on a leading axis of lanes, every copy's numbers in one row of a matrix.

A step of SGD on all copies is then one operation instead of one for each parameter, and so are copying and averaging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffalm.engines.jobs import Model

_ALIGNED = 64  # numbers: where every entry begins, so that kernels read whole lines of memory


@dataclass(frozen=True)
class _Entry:
    """Where a parameter or buffer lies in a row, and in which memory order."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int

    def view(self, rows: Tensor) -> Tensor:
        """The entry of every row of a matrix (lane, number)."""
        stride = (rows.stride(0), *self.stride)
        return rows.as_strided((len(rows), *self.shape), stride, rows.storage_offset() + self.first)


class VectorLayout:
    """How a model's floating numbers lie in one vector: parameters first, then buffers.

    The weights of convolutions have their input channels last: pixels lie in memory that way too.
    """

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict()
        trained = [name for name, _ in model.named_parameters()]
        floats = [name for name, entry in state.items() if entry.dtype.is_floating_point]
        self.order = list(state)
        self.counters = [name for name in state if name not in floats]
        self.dtype = state[floats[0]].dtype
        self._entries: dict[str, _Entry] = {}
        end = 0
        for name in [*trained, *(name for name in floats if name not in trained)]:
            shape = tuple(state[name].shape)
            self._entries[name] = _Entry(shape, _channels_last(shape), end)
            end += -(-state[name].numel() // _ALIGNED) * _ALIGNED
            if name == trained[-1]:
                self.trained = end  # how many numbers of a vector are of parameters
        self.size = end

    def of(self, rows: Tensor) -> dict[str, Tensor]:
        """Each entry of a matrix (lane, number), by name; a matrix of parameters alone has these alone."""
        entries = self._entries.items()
        return {name: entry.view(rows) for name, entry in entries if entry.first < rows.shape[1]}

    def vector(self, model: Model, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
        """A model as a vector, and its counters."""
        vector = torch.zeros(1, self.size, dtype=self.dtype, device=device)
        for name, view in self.of(vector).items():
            view[0].copy_(model[name])
        return vector[0], {name: model[name].to(device) for name in self.counters}

    def model(self, vector: Tensor, counters: Mapping[str, Tensor]) -> Model:
        """The model that lies in a vector, its entries being views."""
        entries = self.of(vector.unsqueeze(0))
        return {name: entries[name][0] if name in entries else counters[name] for name in self.order}


@dataclass(frozen=True)
class LaneParameter:
    """A parameter of every lane."""

    value: Tensor  # (lane, ...)
    read: Tensor  # the same as forward and backward passes read it, perhaps in a lower precision
    gradient: Tensor  # (lane, ...), written by backward passes


class LaneWeights:
    """The models of several lanes while they train."""

    def __init__(self, layout: VectorLayout, lanes: int, device: torch.device, low: torch.dtype | None) -> None:
        """`low` is the precision in which forward and backward passes read parameters, None for their own."""
        self._layout = layout
        self.values = torch.zeros(lanes, layout.size, dtype=layout.dtype, device=device)
        self.gradient = torch.zeros(lanes, layout.trained, dtype=layout.dtype, device=device)
        self.read = self.values if low is None else torch.zeros(lanes, layout.trained, dtype=low, device=device)
        self._lower = low is not None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def parameters(self) -> Tensor:
        """(lane, number): the trained part of every lane."""
        return self.values[:, : self._layout.trained]

    def load(self, vectors: Sequence[Tensor]) -> None:
        """Begin at these models, one for each lane."""
        torch.stack(list(vectors), out=self.values)
        if self._lower:
            self.read.copy_(self.parameters)

    def __getitem__(self, lanes: slice) -> LaneWeights:
        """Some of the lanes, sharing their memory."""
        part = object.__new__(LaneWeights)
        part._layout, part._lower = self._layout, self._lower
        part.values, part.gradient, part.read = self.values[lanes], self.gradient[lanes], self.read[lanes]
        return part

    def entries(self) -> tuple[dict[str, LaneParameter], dict[str, Tensor]]:
        """Parameters and buffers by name, each with a leading axis of lanes."""
        values, gradients = self._layout.of(self.values), self._layout.of(self.gradient)
        read = self._layout.of(self.read)
        parameters = {name: LaneParameter(values[name], read[name], gradients[name]) for name in gradients}
        return parameters, {name: value for name, value in values.items() if name not in parameters}


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an entry: the second axis of four is the one whose numbers are neighbours."""
    order = (0, 2, 3, 1) if len(shape) == 4 else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)
