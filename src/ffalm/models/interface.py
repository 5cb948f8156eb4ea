"""The interface of model architectures."""

from __future__ import annotations

from typing import Protocol

from torch import nn


class Architecture(Protocol):
    """The settings of a model, which can build it once the input shape and the number of labels are known."""

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """A new module for inputs of this shape (without the row axis)."""
        ...
