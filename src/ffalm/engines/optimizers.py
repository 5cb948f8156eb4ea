"""The optimisers of local training. Their state starts anew each round; `torch.optim` is the reference of the tests.

An optimiser turns a gradient into a direction and works on `ModelVector`s, so it is elementwise and runs on every
engine. To add one: a frozen dataclass here, and its name in `local_optimizer` and `run_settings.Optimizer`. It says
    moments     how many model-sized buffers it keeps within a round; they start at 0
    plain       whether the direction is the gradient itself
    rotates     whether rotated parameters give the rotated step, and parameters without gradient stay where they are:
                only then may an engine train rotated coordinates, such as the difference of two logits' weights
    direction   the direction of step 1, 2, ... of a round; changes the moments in place
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ffalm.algorithms import ModelVector
from ffalm.run_settings import Training


@dataclass(frozen=True)
class SGD:
    """w <- w - lr * b,  b <- momentum * b + g,  with weight decay added to g."""

    moments: ClassVar[int] = 1

    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def rotates(self) -> bool:
        """All of it is linear; weight decay moves parameters that have no gradient."""
        return self.weight_decay == 0

    @property
    def plain(self) -> bool:
        """Whether the direction is the gradient itself."""
        return self.momentum == 0 and self.weight_decay == 0

    def direction(
        self, gradient: ModelVector, weights: ModelVector, moments: list[ModelVector], step: Tensor
    ) -> ModelVector:
        """The momentum buffer, or the gradient if there is no momentum."""
        gradient = gradient + self.weight_decay * weights if self.weight_decay else gradient
        if not self.momentum:
            return gradient
        moments[0].copy_(self.momentum * moments[0] + gradient)
        return moments[0]


@dataclass(frozen=True)
class Adam:
    """w <- w - lr * m^ / (sqrt(v^) + eps) with bias-corrected moments (Kingma and Ba, 2015)."""

    moments: ClassVar[int] = 2
    rotates: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def direction(
        self, gradient: ModelVector, weights: ModelVector, moments: list[ModelVector], step: Tensor
    ) -> ModelVector:
        """The corrected first moment over the root of the second."""
        gradient = gradient + self.weight_decay * weights if self.weight_decay else gradient
        first, second = moments
        first.copy_(self.beta1 * first + (1 - self.beta1) * gradient)
        second.copy_(self.beta2 * second + (1 - self.beta2) * (gradient * gradient))
        corrected = [1 - torch.pow(beta, step) for beta in (self.beta1, self.beta2)]
        return (first / corrected[0]) / ((second / corrected[1]).sqrt() + self.eps)


def local_optimizer(training: Training) -> SGD | Adam:
    """The optimizer of local training."""
    if training.optimizer == "adam":
        return Adam(training.weight_decay)
    return SGD(training.momentum, training.weight_decay)
