"""What a layer does beside its weights, and what a way of computing the layers of many models must offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ffalm.engines.lockstep.lane_weights import LaneParameter


@dataclass(frozen=True)
class Convolution:
    """What a convolution does beside its weights."""

    stride: int
    padding: int


@dataclass(frozen=True)
class Pooling:
    """A maximum over square windows."""

    size: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Normalisation:
    """A batch normalisation: what it does, and whether a ReLU follows."""

    eps: float
    momentum: float
    rectified: bool


class Layers(Protocol):
    """A way of computing layers: `TorchLayers`, `TritonLayers`."""

    def convolve(self, x: Tensor, weight: LaneParameter, how: Convolution) -> Tensor: ...
    def convolve_backward(
        self, x: Tensor, dy: Tensor, weight: LaneParameter, how: Convolution, by_input: bool
    ) -> Tensor | None: ...
    def normalise(
        self, x: Tensor, other: Tensor | None, scale: LaneParameter, shift: LaneParameter,
        running: tuple[Tensor, Tensor], how: Normalisation, training: bool,
    ) -> tuple[Tensor, Any]: ...  # fmt: skip
    def normalise_backward(
        self, x: Tensor, y: Tensor, dy: Tensor, kept: Any, scale: LaneParameter, shift: LaneParameter,
        how: Normalisation, added: bool,
    ) -> tuple[Tensor, Tensor | None]: ...  # fmt: skip
    def pool(self, x: Tensor, how: Pooling) -> tuple[Tensor, Tensor]: ...
    def pool_backward(self, dy: Tensor, where: Tensor, how: Pooling, shape: torch.Size) -> Tensor: ...
    def sgd_step(self, values: Tensor, gradient: Tensor, read: Tensor, rates: Tensor) -> None: ...
