"""Forward and backward passes of a `Network` over many copies of its weights, written out rather than left to autograd.

Autograd would be right too; but at the size of a batch of rows most of its time is bookkeeping, and for layers with
few outputs it multiplies in an order that is several times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffalm.engines.stacked.layout import Layout
from ffalm.engines.stacked.network import Network, Result

Entries = dict[str, Tensor]

threshold_backward = torch.ops.aten.threshold_backward


@dataclass
class Pass:
    """What a forward pass leaves for the backward one."""

    values: dict[str, Tensor | None]
    live: dict[str, tuple[Tensor, list[Tensor]]] = field(
        default_factory=dict
    )  # functions that autograd goes back through


def forward(
    network: Network,
    layout: Layout,
    entries: Entries,
    x: Tensor | None,
    enter: Callable[[], Tensor] | None = None,
    taped: bool = True,
) -> tuple[Tensor, Pass]:
    """The logits of stacked rows; where `x` is None, `enter` gives the result of the first layer."""
    done = Pass({network.entry: x})
    for step in network.operations:
        if step.linear is not None:
            value = done.values[step.source]
            if value is None:
                assert enter is not None
                result = enter()
            else:
                result = _affine(layout, step.linear, entries, value)
            done.values[step.result] = result.relu_() if step.rectified else result
        else:
            assert step.function is not None
            given = [done.values[value.name] if isinstance(value, Result) else value for value in step.arguments]
            with torch.inference_mode(not taped):
                if taped:
                    given = [value.clone().requires_grad_() if isinstance(value, Tensor) else value for value in given]
                made = step.function(*given, **step.settings)
            if taped:
                done.live[step.result] = (made, [value for value in given if isinstance(value, Tensor)])
            done.values[step.result] = made.detach()
    logits = done.values[network.exit]
    assert logits is not None
    return logits, done


def backward(
    network: Network,
    layout: Layout,
    entries: Entries,
    done: Pass,
    by_logits: Tensor,
    leave: Callable[[Tensor], None] | None = None,
) -> Entries:
    """The gradients by the parameters; `leave` is given that of a first layer that `enter` computed."""
    by_result: Entries = {network.exit: by_logits}
    found: Entries = {}
    for step in reversed(network.operations):
        gradient = by_result.pop(step.result, None)
        if gradient is None:
            continue
        if step.linear is None:
            made, given = done.live[step.result]
            names = [value.name for value in step.arguments if isinstance(value, Result)]
            with torch.inference_mode(False):
                parts = torch.autograd.grad(made, given, gradient)
            for name, part in zip(names, parts, strict=True):
                if name != network.entry:
                    by_result[name] = by_result[name] + part if name in by_result else part
            continue
        if step.rectified:
            if done.live:  # autograd may have given one tensor as the gradient of several results
                gradient = gradient.clone()
            threshold_backward.grad_input(gradient, done.values[step.result], 0, grad_input=gradient)
        value = done.values[step.source]
        if value is None:
            assert leave is not None
            leave(gradient)
            continue
        further = _back(layout, step.linear, entries, found, value, gradient, step.source != network.entry)
        if further is not None:
            by_result[step.source] = by_result[step.source] + further if step.source in by_result else further
    return found


def _affine(layout: Layout, name: str, entries: Entries, value: Tensor) -> Tensor:
    """value @ weight + bias for each copy; of a folded layer one number a row."""
    weight, bias = entries[f"{name}.weight"], entries.get(f"{name}.bias")
    if f"{name}.weight" in layout.folded:
        turned = value.transpose(1, 2)
        return (torch.bmm(weight, turned) if bias is None else torch.baddbmm(bias, weight, turned)).squeeze(1)
    matrix = weight.transpose(1, 2) if f"{name}.weight" in layout.narrow else weight
    return torch.bmm(value, matrix) if bias is None else torch.baddbmm(bias, value, matrix)


def _back(
    layout: Layout, name: str, entries: Entries, found: Entries, value: Tensor, gradient: Tensor, further: bool
) -> Tensor | None:
    """The way back through a linear layer; the gradient by its argument if it goes further."""
    weight_name, bias_name = f"{name}.weight", f"{name}.bias"
    weight = entries[weight_name]
    if weight_name in layout.folded:
        turned = gradient.unsqueeze(1)
        found[weight_name] = torch.bmm(turned, value)
        if bias_name in entries:
            found[bias_name] = gradient.sum(1, keepdim=True)
        return gradient.unsqueeze(2) * weight if further else None
    narrow = weight_name in layout.narrow
    first, second = (gradient, value) if narrow else (value, gradient)
    found[weight_name] = torch.bmm(first.transpose(1, 2), second)
    if bias_name in entries:
        found[bias_name] = gradient.sum(1)
    return torch.bmm(gradient, weight if narrow else weight.transpose(1, 2)) if further else None
