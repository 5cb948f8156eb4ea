"""How the parameters of many copies of a network are kept while they are worked on: in a few blocks of numbers.

A block holds some parameters of every copy, one row per copy. With few blocks a step of SGD is few operations however
many layers there are, and at the size of a batch of rows an operation costs more to start than to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.engines.stacked.network import Network

ROOT = math.sqrt(2)

_NARROW = 16  # layers with fewer outputs keep their matrix as (output, input), others as (input, output)
_SMALL = 2048  # numbers up to which a parameter shares a block: its gradient is then copied into its place

Model = dict[str, Tensor]


@dataclass(frozen=True)
class ParameterLayout:
    """The order of a network's parameters, and the form in which each is worked on; a bias is a matrix of one input.

    A layer that alone sees the features is `joined`: its bias is one more input, which is 1 for every row.

    A last layer with two outputs is `folded`: a loss sees only the difference of its logits, so training moves only
    (w_1 - w_0) / sqrt(2) and never (w_1 + w_0) / sqrt(2). The two are a rotation of w_0 and w_1, under which steps
    and norms of gradients stay what they were. The layer then gives one number per row, the difference over sqrt(2).
    """

    saved: tuple[str, ...]  # the parameters as the module has them
    shapes: dict[str, tuple[int, int]]  # those that are worked on, in their order
    joined: str | None
    narrow: frozenset[str]
    folded: frozenset[str]

    @property
    def scale(self) -> float:
        """The factor that turns the network's result into a difference of logits."""
        return ROOT if self.folded else 1.0

    def packed(self, models: Model) -> tuple[Model, list[Tensor]]:
        """Stacked parameters as they are worked on: what training moves, and what it leaves."""
        trained, fixed = {}, []
        for name in self.shapes:
            entry = models[name] if models[name].ndim == 3 else models[name].unsqueeze(2)
            if self.joined and name == f"{self.joined}.weight":
                entry = torch.cat([entry, models[f"{self.joined}.bias"].unsqueeze(2)], 2)
            if name in self.folded:
                trained[name] = (entry[:, 1:] - entry[:, :1]) / ROOT
                fixed.append((entry[:, 1:] + entry[:, :1]) / ROOT)
            else:
                trained[name] = entry if name in self.narrow else entry.transpose(1, 2)
        return trained, fixed

    def unpacked(self, trained: Model, fixed: Sequence[Tensor]) -> Model:
        """Stacked parameters as the module has them."""
        left = iter(fixed)
        models = {}
        for name in self.shapes:
            entry = trained[name]
            if name in self.folded:
                middle = next(left)
                entry = torch.cat([middle - entry, middle + entry], 1) / ROOT
            elif name not in self.narrow:
                entry = entry.transpose(1, 2)
            if self.joined and name == f"{self.joined}.weight":
                models[f"{self.joined}.bias"] = entry[:, :, -1].contiguous()
                entry = entry[:, :, :-1]
            models[name] = (entry.squeeze(2) if name.endswith(".bias") else entry).contiguous()
        return {name: models[name] for name in self.saved}


def layout_of(network: Network, parameters: Model, fold: bool = True) -> ParameterLayout:
    """The working layout of a network's parameters; `fold` allows a rotation of the last layer of two outputs."""
    narrow = {name for name, entry in parameters.items() if entry.ndim > 1 and entry.shape[0] < _NARROW}
    last = network.operations[-1]
    head = last.result == network.exit and last.linear is not None and not last.rectified
    foldable = fold and head and len(parameters[f"{last.linear}.weight"]) == 2
    folded = {name for name in parameters if foldable and name in (f"{last.linear}.weight", f"{last.linear}.bias")}
    entered = network.entered_by()
    joined = entered if f"{entered}.bias" in parameters else None
    shapes = {}
    for name, entry in parameters.items():
        if joined is None or name != f"{joined}.bias":
            inputs = entry.shape[1] + (name == f"{joined}.weight") if entry.ndim > 1 else 1
            outputs = 1 if name in folded else len(entry)
            shapes[name] = (outputs, inputs) if name in narrow | folded else (inputs, outputs)
    return ParameterLayout(tuple(parameters), shapes, joined, frozenset(narrow), frozenset(folded))


class Blocks:
    """Which parameters share a block: the small ones; each other has one of its own."""

    def __init__(self, shapes: dict[str, tuple[int, int]]) -> None:
        small = [name for name, shape in shapes.items() if math.prod(shape) <= _SMALL]
        large = [[name] for name in shapes if name not in small]
        self._names = [*large, small] if small else large
        self._shapes = shapes

    def filled(self, entries: Model) -> list[Tensor]:
        """The blocks of stacked parameters or gradients; a parameter that is not given is 0."""
        return [self._filled(names, entries) for names in self._names]

    def views(self, blocks: Sequence[Tensor]) -> Model:
        """The parameters in their shapes, where they lie in the blocks."""
        found = {}
        for names, block in zip(self._names, blocks, strict=True):
            pieces = torch.split_with_sizes(block, [math.prod(self._shapes[name]) for name in names], 1)
            found.update(
                {name: piece.view(len(block), *self._shapes[name]) for name, piece in zip(names, pieces, strict=True)}
            )
        return found

    def _filled(self, names: list[str], entries: Model) -> Tensor:
        like = next(iter(entries.values()))
        parts = [
            entries[name].flatten(1) if name in entries else like.new_zeros(len(like), math.prod(self._shapes[name]))
            for name in names
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
