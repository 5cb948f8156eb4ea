"""Models by name: frozen dataclasses of settings that build an `nn.Module` for an input shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffalm.errors import look_up, require
from ffalm.models.cnn import CNN
from ffalm.models.interface import Architecture
from ffalm.models.mlp import MLP, Linear
from ffalm.models.pretrained import Pretrained, from_scratch
from ffalm.models.resnet import ResNet18
from ffalm.settings import build

ARCHITECTURES: dict[str, type[Architecture]] = {cls.name: cls for cls in (Linear, MLP, CNN, ResNet18)}


def architecture(name: str, settings: Mapping[str, Any] | None = None) -> Architecture:
    """An architecture by name, with checked settings; `weights` is a file of pretrained weights for any of them."""
    cls = look_up("model", name, ARCHITECTURES)
    own = dict(settings or {})
    weights = own.pop("weights", None)
    model = build(cls, own, f"model {name!r}")
    if weights is None:
        return model
    require(isinstance(weights, str), f"The setting 'weights' of a model must be a file name; got {weights!r}.")
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
