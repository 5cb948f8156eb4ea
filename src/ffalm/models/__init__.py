"""Models by name: each a frozen dataclass of settings that builds an `nn.Module` for a shape of input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffalm.errors import require, unknown
from ffalm.models.base import Architecture
from ffalm.models.cnn import CNN
from ffalm.models.mlp import MLP, Linear
from ffalm.models.pretrained import Pretrained, from_scratch
from ffalm.models.resnet import ResNet18
from ffalm.settings import build

ARCHITECTURES: dict[str, type[Architecture]] = {cls.name: cls for cls in (Linear, MLP, CNN, ResNet18)}


def architecture(name: str, settings: Mapping[str, Any] | None = None) -> Architecture:
    """An architecture by its name, with its settings checked; any can start from a file that `weights` names."""
    if name not in ARCHITECTURES:
        raise unknown("model", name, ARCHITECTURES)
    own = dict(settings or {})
    weights = own.pop("weights", None)
    model = build(ARCHITECTURES[name], own, f"model {name!r}")
    if weights is None:
        return model
    require(isinstance(weights, str), f"The weights of a model are the name of a file; got {weights!r}.")
    return Pretrained(model, weights)


__all__ = [
    "ARCHITECTURES",
    "CNN",
    "MLP",
    "Architecture",
    "Linear",
    "Pretrained",
    "ResNet18",
    "architecture",
    "from_scratch",
]
