"""Model-sized quantities (momentum, control variates, drift) as one value with elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_foreach: Any = torch  # torch's foreach functions: one launch for all tensors; untyped in torch


class ModelVector:
    """One number for every trained number of a model.

    An engine chooses the layout: a tensor per parameter, or a few blocks with a leading client axis. So a formula over
    vectors must be elementwise and must not depend on names or shapes of parameters. A tensor operand is aligned with
    the leading axes: multiplying by one number per client scales each client's own vector.
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    def __add__(self, other: ModelVector | float | Tensor) -> ModelVector:
        return self._with("_foreach_add", other)

    def __sub__(self, other: ModelVector | float | Tensor) -> ModelVector:
        return self._with("_foreach_sub", other)

    def __mul__(self, other: ModelVector | float | Tensor) -> ModelVector:
        return self._with("_foreach_mul", other)

    def __truediv__(self, other: ModelVector | float | Tensor) -> ModelVector:
        return self._with("_foreach_div", other)

    def __rmul__(self, other: float | Tensor) -> ModelVector:
        return self * other

    def __neg__(self) -> ModelVector:
        return ModelVector(_foreach._foreach_neg(self.tensors))

    def sqrt(self) -> ModelVector:
        """The square root of every number."""
        return ModelVector(_foreach._foreach_sqrt(self.tensors))

    def sign(self) -> ModelVector:
        """The sign of every number."""
        return self.map(torch.sign)

    def map(self, function: Callable[[Tensor], Tensor]) -> ModelVector:
        """An elementwise function of every tensor."""
        return ModelVector([function(value) for value in self.tensors])

    def zeros(self) -> ModelVector:
        """Zeros in the same layout."""
        return self.map(torch.zeros_like)

    def copy_(self, other: ModelVector) -> None:
        """Overwrite the numbers in place."""
        _foreach._foreach_copy_(self.tensors, other.tensors)

    def add_(self, other: ModelVector) -> None:
        """Add in place."""
        _foreach._foreach_add_(self.tensors, other.tensors)

    def __getitem__(self, copies: slice) -> ModelVector:
        """Some entries of the leading axis, as views."""
        return ModelVector([value[copies] for value in self.tensors])

    def _with(self, operation: str, other: ModelVector | float | Tensor) -> ModelVector:
        function = getattr(_foreach, operation)
        if isinstance(other, ModelVector):
            return ModelVector(function(self.tensors, other.tensors))
        if isinstance(other, Tensor):
            return ModelVector(function(self.tensors, [_aligned(other, value) for value in self.tensors]))
        return ModelVector(function(self.tensors, other))


Vectors = dict[str, ModelVector]
"""Model-sized vectors by name."""


def _aligned(value: Tensor, like: Tensor) -> Tensor:
    """A tensor over leading axes, shaped so that it broadcasts over the others."""
    return value.to(device=like.device, dtype=like.dtype).reshape(*value.shape, *[1] * (like.ndim - value.ndim))
