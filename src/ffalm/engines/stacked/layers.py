"""Linear layers of many copies of a model: batched products with their backward pass written out.

Autograd would be right too, but multiplies in an order that is several times slower for layers with few outputs, and
cannot rectify in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NARROW = 16  # layers with fewer outputs keep their matrix as (output, input), others as (input, output)

threshold_backward = torch.ops.aten.threshold_backward


def is_narrow(matrix: Tensor) -> bool:
    """Whether a layer's stacked matrix (copy, output, input) is better left as it is."""
    return matrix.shape[1] < _NARROW


class Affine(torch.autograd.Function):
    """value @ weight + bias for each copy, rectified if asked."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, bias: Tensor | None, narrow: bool, rectified: bool) -> Tensor:
        """`value` is (copy, row, input), `weight` (copy, input, output), or turned round where narrow."""
        matrix = weight.transpose(1, 2) if narrow else weight
        result = torch.bmm(value, matrix) if bias is None else torch.baddbmm(bias.unsqueeze(1), value, matrix)
        if rectified:
            result.relu_()
        ctx.save_for_backward(value, weight, result if rectified else None)
        ctx.narrow, ctx.biased = narrow, bias is not None
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients by the value, the weight and the bias."""
        value, weight, result = ctx.saved_tensors
        if result is not None:
            gradient = threshold_backward(gradient, result, 0)
        turned = gradient.transpose(1, 2)
        by_value = None
        if ctx.needs_input_grad[0]:
            by_value = torch.bmm(gradient, weight if ctx.narrow else weight.transpose(1, 2))
        by_weight = torch.bmm(turned, value) if ctx.narrow else torch.bmm(value.transpose(1, 2), gradient)
        return by_value, by_weight, gradient.sum(1) if ctx.biased else None, None, None


def affine(value: Tensor, weight: Tensor, bias: Tensor | None, narrow: bool, rectified: bool) -> Tensor:
    """value @ weight + bias for each copy, rectified if asked."""
    result: Tensor = Affine.apply(value, weight, bias, narrow, rectified)  # type: ignore[no-untyped-call]
    return result
