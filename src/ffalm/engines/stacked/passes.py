"""Forward and backward passes of a `Network` over many copies of its weights, written out rather than left to autograd.

Autograd would be right too; but at the size of a batch of rows most of its time is bookkeeping, and for layers with
few outputs it multiplies in an order that is several times slower. For the same reason names are put together once,
when the passes are made, and not at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ffalm.engines.stacked.layout import ParameterLayout
from ffalm.engines.stacked.network import Network, Operation, Result

Entries = dict[str, Tensor]

_threshold_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(slots=True)
class Pass:
    """What a forward pass leaves for the backward one."""

    values: Entries
    live: dict[str, tuple[Tensor, list[Tensor]]]  # functions that autograd goes back through


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer: what it takes and gives, its parameters by name, and the form of its matrix."""

    source: str
    result: str
    weight: str
    bias: str
    folded: bool
    narrow: bool
    rectified: bool

    @classmethod
    def of(cls, step: Operation, layout: ParameterLayout) -> Linear:
        """A step of a network whose parameters are laid out."""
        weight = f"{step.linear}.weight"
        return cls(
            step.source, step.result, weight, f"{step.linear}.bias",
            weight in layout.folded, weight in layout.narrow, step.rectified,
        )  # fmt: skip

    def forward(self, entries: Entries, value: Tensor) -> Tensor:
        """value @ weight + bias for each copy, of a folded layer one number per row; rectified if that is to follow."""
        weight, bias = entries[self.weight], entries.get(self.bias)
        if self.folded:
            value = value.transpose(1, 2)
            result = (torch.bmm(weight, value) if bias is None else torch.baddbmm(bias, weight, value)).squeeze(1)
        else:
            matrix = weight.transpose(1, 2) if self.narrow else weight
            result = torch.bmm(value, matrix) if bias is None else torch.baddbmm(bias, value, matrix)
        return result.relu_() if self.rectified else result

    def backward(
        self, entries: Entries, found: Entries, value: Tensor, gradient: Tensor, further: bool
    ) -> Tensor | None:
        """Put the parameters' gradients into `found`; the gradient by the layer's argument if it goes further."""
        weight = entries[self.weight]
        if self.folded:
            found[self.weight] = torch.bmm(gradient.unsqueeze(1), value)
            if self.bias in entries:
                found[self.bias] = gradient.sum(1, keepdim=True)
            return gradient.unsqueeze(2) * weight if further else None
        first, second = (gradient, value) if self.narrow else (value, gradient)
        found[self.weight] = torch.bmm(first.transpose(1, 2), second)
        if self.bias in entries:
            found[self.bias] = gradient.sum(1)
        return torch.bmm(gradient, weight if self.narrow else weight.transpose(1, 2)) if further else None


@dataclass(frozen=True)
class Passes:
    """The way through a network, or through what follows a layer that somebody else computes."""

    network: Network
    layout: ParameterLayout
    without: str | None = None  # the layer to leave out, which must be the one that alone sees the features

    def forward(self, entries: Entries, values: Entries, taped: bool) -> Pass:
        """All results, given those that the network starts from."""
        done = Pass(values, {})
        for step in self._steps:
            if isinstance(step, Linear):
                values[step.result] = step.forward(entries, values[step.source])
            else:
                _apply(step, done, taped)
        return done

    def backward(self, entries: Entries, done: Pass, by_exit: Tensor, again: bool) -> tuple[Entries, Entries]:
        """The gradients by the parameters, and those by the values that the pass was given and that need one."""
        found: Entries = {}
        by_result = {self.network.exit: by_exit}
        for step in reversed(self._steps):
            gradient = by_result.pop(step.result, None)
            if gradient is None:
                continue
            if isinstance(step, Linear):
                if step.rectified:
                    gradient = rectified(gradient, done, step.result)
                further = step.source != self.network.entry
                part = step.backward(entries, found, done.values[step.source], gradient, further)
                if part is not None:
                    _add(by_result, step.source, part)
            else:
                made, given = done.live[step.result]
                names = [value.name for value in step.arguments if isinstance(value, Result)]
                with torch.inference_mode(False):
                    parts = torch.autograd.grad(made, given, gradient, retain_graph=again)
                for name, part in zip(names, parts, strict=True):
                    if name != self.network.entry:
                        _add(by_result, name, part)
        return found, by_result

    @cached_property
    def _steps(self) -> Sequence[Linear | Operation]:
        kept = [step for step in self.network.operations if step.linear is None or step.linear != self.without]
        return [step if step.linear is None else Linear.of(step, self.layout) for step in kept]


def rectified(gradient: Tensor, done: Pass, result: str) -> Tensor:
    """The gradient before a ReLU, from that after it; written over it unless somebody else may hold it."""
    if done.live:  # autograd may have given one tensor as the gradient of several results
        gradient = gradient.clone()
    _threshold_backward(gradient, done.values[result], 0, grad_input=gradient)
    return gradient


def _apply(step: Operation, done: Pass, taped: bool) -> None:
    """An elementwise function, under autograd if the pass is to go back."""
    assert step.function is not None
    given = [done.values[value.name] if isinstance(value, Result) else value for value in step.arguments]
    with torch.inference_mode(not taped):
        if taped:
            given = [value.clone().requires_grad_() if isinstance(value, Tensor) else value for value in given]
        made = step.function(*given, **step.settings)
    if taped:
        done.live[step.result] = (made, [value for value in given if isinstance(value, Tensor)])
    done.values[step.result] = made.detach()


def _add(by_result: Entries, name: str, part: Tensor) -> None:
    by_result[name] = by_result[name] + part if name in by_result else part
