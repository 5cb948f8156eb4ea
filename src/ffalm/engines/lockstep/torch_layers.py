"""The layers of many models at once in plain torch operations: what the kernels are held to, and what a CPU runs.

Images lie as (lane, row, height, width, channel); an image that all lanes share has one lane. Backward functions write
the gradients of parameters where these keep them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from ffalm.engines.lockstep.lane_weights import LaneParameter
from ffalm.engines.lockstep.layers import Convolution, Normalisation, Pooling


class TorchLayers:
    """Convolutions as grouped ones, with a group for each lane."""

    def convolve(self, x: Tensor, weight: LaneParameter, how: Convolution) -> Tensor:
        """The convolution of each lane's rows by its weights."""
        lanes = len(weight.read)
        y = conv2d(_grouped(x, lanes), _filters(weight), stride=how.stride, padding=how.padding, groups=lanes)
        return _by_lane(y, lanes)

    def convolve_backward(
        self, x: Tensor, dy: Tensor, weight: LaneParameter, how: Convolution, by_input: bool
    ) -> Tensor | None:
        """The gradient by the rows if it is wanted; that by the weights is written into `weight.gradient`."""
        lanes = len(weight.read)
        dx, dw, _ = torch.ops.aten.convolution_backward(
            _grouped(dy, lanes), _grouped(x, lanes), _filters(weight), None, [how.stride] * 2,
            [how.padding] * 2, [1, 1], False, [0, 0], lanes, [by_input, True, False],
        )  # fmt: skip
        weight.gradient.copy_(dw.view(weight.gradient.shape))
        return _by_lane(dx, lanes) if by_input else None

    def normalise(
        self, x: Tensor, other: Tensor | None, scale: LaneParameter, shift: LaneParameter,
        running: tuple[Tensor, Tensor], how: Normalisation, training: bool,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """Normalised rows, plus `other`, through a ReLU; and what the way back needs. Moves the running statistics."""
        mean, var = (one[:, None, None, None] for one in running)
        if training:
            var, mean = torch.var_mean(x, (1, 2, 3), correction=0, keepdim=True)
            count = x[0, ..., 0].numel()
            running[0].lerp_(mean.flatten(1), how.momentum)
            running[1].lerp_(var.flatten(1) * (count / (count - 1)), how.momentum)
        deviation = (var + how.eps).rsqrt()
        y = (x - mean) * deviation * _by_channel(scale.value) + _by_channel(shift.value)
        y = y if other is None else y + other
        return y.relu() if how.rectified else y, (mean, deviation)

    def normalise_backward(
        self, x: Tensor, y: Tensor, dy: Tensor, kept: Any, scale: LaneParameter, shift: LaneParameter,
        how: Normalisation, added: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The gradients by x and by what was added to it."""
        mean, deviation = kept
        g = dy * (y > 0) if how.rectified else dy
        normal = (x - mean) * deviation
        by_shift, by_scale = g.sum((1, 2, 3)), (g * normal).sum((1, 2, 3))
        shift.gradient.copy_(by_shift)
        scale.gradient.copy_(by_scale)
        count = x[0, ..., 0].numel()
        inner = g - (_by_channel(by_shift) + normal * _by_channel(by_scale)) / count
        return _by_channel(scale.value) * deviation * inner, g if added else None

    def pool(self, x: Tensor, how: Pooling) -> tuple[Tensor, Tensor]:
        """The largest value of each window, and where it stands in its image."""
        y, where = max_pool2d(
            x.flatten(0, 1).permute(0, 3, 1, 2), how.size, how.stride, how.padding, return_indices=True
        )
        return _last(y, x), _last(where, x)

    def pool_backward(self, dy: Tensor, where: Tensor, how: Pooling, shape: torch.Size) -> Tensor:
        """The gradient by rows of this shape."""
        lanes, rows, height, width, channels = shape
        dx = dy.new_zeros(lanes * rows, height * width, channels)
        dx.scatter_add_(1, where.view(lanes * rows, -1, channels), dy.reshape(lanes * rows, -1, channels))
        return dx.view(shape)

    def sgd_step(self, values: Tensor, gradient: Tensor, read: Tensor, rates: Tensor) -> None:
        """values -= rate gradient in each lane; `read` is the same memory."""
        values.addcmul_(gradient, rates.unsqueeze(1), value=-1)


def _grouped(x: Tensor, lanes: int) -> Tensor:
    """(row, lane and channel, height, width)"""
    return x.expand(lanes, *x.shape[1:]).permute(1, 0, 4, 2, 3).flatten(1, 2)


def _filters(weight: LaneParameter) -> Tensor:
    """(lane and output, input, height, width), for torch refuses the strides that a single one of both can have."""
    return weight.read.flatten(0, 1).contiguous()


def _by_lane(x: Tensor, lanes: int) -> Tensor:
    """The reverse of `_grouped`."""
    return x.reshape(len(x), lanes, -1, *x.shape[2:]).permute(1, 0, 3, 4, 2).contiguous()


def _last(value: Tensor, like: Tensor) -> Tensor:
    """Rows of all lanes with their channels last, by lane."""
    last = value.permute(0, 2, 3, 1)
    return last.reshape(*like.shape[:2], *last.shape[1:])


def _by_channel(values: Tensor) -> Tensor:
    return values[:, None, None, None]
