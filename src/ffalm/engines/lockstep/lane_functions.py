"""Layers of many models at once as functions that autograd goes back through.

The gradients of rows travel through autograd; those of parameters are written where the parameters keep them. `anchor`
is a number without effect that makes autograd come back to a layer even where nothing before it is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ffalm.engines.lockstep.lane_weights import LaneParameter
from ffalm.engines.lockstep.layers import Convolution, Layers, Normalisation, Pooling


def applied(function: type[Function], *given: Any) -> Tensor:
    """A function's result, which autograd goes back through."""
    made: Tensor = function.apply(*given)  # type: ignore[no-untyped-call]
    return made


class Convolve(Function):
    """x, anchor, layers, weight, bias, how -> y"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layers: Layers, weight: LaneParameter,
                bias: LaneParameter | None, how: Convolution) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x)
        ctx.given = layers, weight, bias, how
        y = layers.convolve(x, weight, how)
        return y if bias is None else y + bias.value[:, None, None, None].to(y.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        layers, weight, bias, how = ctx.given
        if bias is not None:
            bias.gradient.copy_(dy.sum((1, 2, 3), dtype=bias.gradient.dtype))
        return layers.convolve_backward(x, dy, weight, how, ctx.needs_input_grad[0]), None, None, None, None, None


class Normalise(Function):
    """x, added or None, anchor, layers, scale, shift, running statistics, how, training -> y"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, anchor: Tensor, layers: Layers, scale: LaneParameter,
                shift: LaneParameter, running: tuple[Tensor, Tensor], how: Normalisation,
                training: bool) -> Tensor:  # fmt: skip
        y, kept = layers.normalise(x, other, scale, shift, running, how, training)
        ctx.save_for_backward(x, y)
        ctx.given = layers, kept, scale, shift, how, other is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, y = ctx.saved_tensors
        layers, kept, scale, shift, how, added = ctx.given
        dx, by_other = layers.normalise_backward(x, y, dy, kept, scale, shift, how, added)
        return dx, by_other, None, None, None, None, None, None, None


class Pool(Function):
    """x, layers, how -> y"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Layers, how: Pooling) -> Tensor:
        y, where = layers.pool(x, how)
        ctx.save_for_backward(where)
        ctx.given = layers, how, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (where,) = ctx.saved_tensors
        layers, how, shape = ctx.given
        return layers.pool_backward(dy, where, how, shape), None, None


class Linear(Function):
    """x (lane, row, feature), anchor, weight, bias -> y (lane, row, output)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: LaneParameter, bias: LaneParameter | None) -> Tensor:
        x = x.to(weight.value.dtype)
        ctx.save_for_backward(x)
        ctx.given = weight, bias
        turned = weight.value.transpose(1, 2)
        return x @ turned if bias is None else torch.baddbmm(bias.value.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        weight, bias = ctx.given
        if bias is not None:
            bias.gradient.copy_(dy.sum(1))
        weight.gradient.copy_(dy.transpose(1, 2) @ x)
        return dy @ weight.value if ctx.needs_input_grad[0] else None, None, None, None
