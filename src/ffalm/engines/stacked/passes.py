"""Forward and backward passes of a `Network` over many copies of its weights, written out rather than left to autograd.

Autograd would be right too; but at the size of a batch of rows most of its time is bookkeeping, and for layers with
few outputs it multiplies in an order that is several times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffalm.engines.stacked.network import Network, Result

_NARROW = 16  # layers with fewer outputs keep their matrix as (output, input), others as (input, output)

_ROOT = math.sqrt(2)

threshold_backward = torch.ops.aten.threshold_backward


@dataclass(frozen=True)
class Layout:
    """How a network's parameters are kept: in which order, and which matrices stay as (output, input).

    A last layer with two outputs is `folded`: a loss sees only the difference of its logits, so training moves only
    (w_1 - w_0) / sqrt(2) and never (w_1 + w_0) / sqrt(2). The two are a rotation of w_0 and w_1, under which steps
    and norms of gradients stay what they were.
    """

    names: tuple[str, ...]
    narrow: frozenset[str]
    folded: frozenset[str]

    def packed(self, models: dict[str, Tensor], names: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
        """Stacked parameters as they are worked on: what training moves, and what it leaves."""
        trained, fixed = [], []
        for name in names:
            entry = models[name]
            if name in self.folded:
                trained.append((entry[:, 1:] - entry[:, :1]) / _ROOT)
                fixed.append((entry[:, 1:] + entry[:, :1]) / _ROOT)
            else:
                trained.append(self._turned(name, entry))
        return trained, fixed

    def unpacked(self, names: Sequence[str], trained: Sequence[Tensor], fixed: Sequence[Tensor]) -> dict[str, Tensor]:
        """Stacked parameters as the module has them."""
        left = iter(fixed)
        models = {}
        for name, entry in zip(names, trained, strict=True):
            if name in self.folded:
                middle = next(left)
                models[name] = torch.cat([middle - entry, middle + entry], 1) / _ROOT
            else:
                models[name] = self._turned(name, entry)
        return models

    def _turned(self, name: str, entry: Tensor) -> Tensor:
        """A stacked parameter from its own layout to the working one, or back."""
        if entry.ndim < 3 or name in self.narrow:
            return entry
        return entry.transpose(1, 2).contiguous()


def layout_of(network: Network, parameters: dict[str, Tensor]) -> Layout:
    """The working layout of a network's parameters."""
    narrow = {name for name, entry in parameters.items() if entry.ndim > 1 and entry.shape[0] < _NARROW}
    last = network.operations[-1]
    head = last.result == network.exit and last.linear is not None and not last.rectified
    foldable = head and last.source != network.entry and len(parameters[f"{last.linear}.weight"]) == 2
    folded = {name for name in parameters if foldable and name in (f"{last.linear}.weight", f"{last.linear}.bias")}
    return Layout(tuple(parameters), frozenset(narrow), frozenset(folded))


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
    entries: dict[str, Tensor],
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
    entries: dict[str, Tensor],
    done: Pass,
    by_logits: Tensor,
    leave: Callable[[Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """Gradients by the parameters; `leave` is given that of a first layer that `enter` computed."""
    by_result, found = {network.exit: by_logits}, {}
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
            gradient = threshold_backward(gradient, done.values[step.result], 0)
        value = done.values[step.source]
        if value is None:
            assert leave is not None
            leave(gradient)
            continue
        weight_name, bias_name = f"{step.linear}.weight", f"{step.linear}.bias"
        if weight_name in layout.folded:
            pushed = gradient.squeeze(2) * _ROOT
            found[weight_name] = torch.bmm(pushed.unsqueeze(1), value)
            if bias_name in entries:
                found[bias_name] = pushed.sum(1, keepdim=True)
            by_result[step.source] = pushed.unsqueeze(2) * entries[weight_name]
            continue
        narrow = weight_name in layout.narrow
        first, second = (gradient, value) if narrow else (value, gradient)
        found[weight_name] = torch.bmm(first.transpose(1, 2), second)
        if bias_name in entries:
            found[bias_name] = gradient.sum(1)
        if step.source != network.entry:
            weight = entries[weight_name]
            part = torch.bmm(gradient, weight if narrow else weight.transpose(1, 2))
            by_result[step.source] = by_result[step.source] + part if step.source in by_result else part
    return found


def _affine(layout: Layout, name: str, entries: dict[str, Tensor], value: Tensor) -> Tensor:
    """value @ weight + bias for each copy; of a folded layer the difference of its two outputs."""
    weight, bias = entries[f"{name}.weight"], entries.get(f"{name}.bias")
    if f"{name}.weight" in layout.folded:
        turned = value.transpose(1, 2)
        half = torch.bmm(weight, turned) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, turned)
        return half.mul_(_ROOT).transpose(1, 2)
    matrix = weight.transpose(1, 2) if f"{name}.weight" in layout.narrow else weight
    return torch.bmm(value, matrix) if bias is None else torch.baddbmm(bias.unsqueeze(1), value, matrix)
