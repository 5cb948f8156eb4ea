"""A small convolutional network for small images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from ffalm.errors import require
from ffalm.settings import typed


@typed
@dataclass(frozen=True)
class CNN:
    """Blocks of convolution, ReLU and 2x2 max-pooling, then the mean over the map and a linear layer."""

    name: ClassVar[str] = "cnn"

    channels: tuple[int, ...] = field(default=(16, 32, 64), metadata={"most": 4096, "about": "Channels of each block."})

    def __post_init__(self) -> None:
        require(
            bool(self.channels) and all(width > 0 for width in self.channels),
            f"A cnn needs at least one block, each with channels above 0; got {self.channels}.",
        )

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """The network for images of shape (channels, height, width)."""
        require(len(shape) == 3, f"The model 'cnn' takes images of shape (channels, height, width); got {shape}.")
        smallest = 2 ** len(self.channels)
        require(
            min(shape[1:]) >= smallest,
            f"A cnn of {len(self.channels)} blocks needs images of at least {smallest} px; got {shape[1]}x{shape[2]}.",
        )
        layers: list[nn.Module] = []
        inputs = shape[0]
        for outputs in self.channels:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            inputs = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, labels))
