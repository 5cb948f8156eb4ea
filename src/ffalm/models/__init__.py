"""Models by name: each a frozen dataclass of settings that builds an `nn.Module` for a shape of input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from ffalm.errors import unknown
from ffalm.models.cnn import CNN
from ffalm.models.mlp import MLP, Linear
from ffalm.models.resnet import ResNet18
from ffalm.settings import build


class Architecture(Protocol):
    """What a model is before it knows the data: settings, and a way to build it."""

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """A fresh module for inputs of this shape (without the row axis)."""
        ...


ARCHITECTURES: dict[str, type[Architecture]] = {"linear": Linear, "mlp": MLP, "cnn": CNN, "resnet18": ResNet18}


def architecture(name: str, settings: Mapping[str, Any] | None = None) -> Architecture:
    """An architecture by its name, with its settings checked."""
    if name not in ARCHITECTURES:
        raise unknown("model", name, ARCHITECTURES)
    return build(ARCHITECTURES[name], settings or {}, f"model {name!r}")


__all__ = ["ARCHITECTURES", "CNN", "MLP", "Architecture", "Linear", "ResNet18", "architecture"]
