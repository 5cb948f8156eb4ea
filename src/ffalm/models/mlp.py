"""Models for tables: logistic regression and multi-layer perceptrons."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from torch import nn

from ffalm.settings import typed


@dataclass(frozen=True)
class Linear:
    """Multinomial logistic regression."""

    name: ClassVar[str] = "linear"

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """One linear layer on the flattened input."""
        return MLP(hidden=()).build(shape, labels)


@typed
@dataclass(frozen=True)
class MLP:
    """Linear layers with ReLU between them."""

    name: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = field(
        default=(64,), metadata={"least": 1, "most": 2**16, "about": "Widths of the hidden layers."}
    )

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """The layers in sequence; inputs with more than one axis are flattened first."""
        widths = [math.prod(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], labels))
