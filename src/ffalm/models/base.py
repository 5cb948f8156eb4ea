"""What every model promises before it knows the data."""

from __future__ import annotations

from typing import Protocol

from torch import nn


class Architecture(Protocol):
    """What a model is before it knows the data: settings, and a way to build it."""

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """A fresh module for inputs of this shape (without the row axis)."""
        ...
