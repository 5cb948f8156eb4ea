"""Losses of stacked rows, their slope, and the Tallies of many lanes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ffalm.fairness import Tally

softplus: Any = torch._C._nn.softplus  # as in torch.nn.functional, where a type hides that it takes `out`

_EXACT_UP_TO = 40.0  # beyond this log(1 + exp(m)) is m in float64 too


def targets(y: Tensor, labels: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Labels as `losses_of` wants them: of two, a sign times the scale of logits; of more, the row's own logit."""
    return scale - 2 * scale * y.to(dtype) if labels == 2 else y.unsqueeze(-1)


def losses_of(logits: Tensor, target: Tensor, out: Tensor | None = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Softmax cross-entropy of each row, and what turns weights of rows into their gradient by the logits, once.

    Of two labels it is log(1 + exp(m)), with m by how much the other label's logit exceeds that of the row's own; a
    model may give one number per row, the second logit minus the first, instead of both.
    """
    folded = logits.ndim == target.ndim == 2
    if folded or logits.shape[-1] == 2:
        excess = (logits if folded else logits[..., 1] - logits[..., 0]) * target

        def of_two(weights: Tensor) -> Tensor:
            pushed = excess.sigmoid_().mul_(target).mul_(weights)
            return pushed if folded else torch.stack([-pushed, pushed], -1)

        return softplus(excess, 1, _EXACT_UP_TO, out=out), of_two
    logs = logits.log_softmax(-1)

    def of_many(weights: Tensor) -> Tensor:
        pushed = logs.exp().mul_(weights.unsqueeze(-1))
        return pushed.scatter_add_(-1, target, -weights.unsqueeze(-1))

    return torch.neg(logs.gather(-1, target).squeeze(-1), out=out), of_many


def predictions(logits: Tensor) -> Tensor:
    """The label with the largest logit, the first of equals."""
    if logits.ndim == 2:
        return logits > 0
    return logits[..., 1] > logits[..., 0] if logits.shape[-1] == 2 else logits.argmax(-1)


class Cells:
    """Where each row is counted: lane, label and group; rows that a mask leaves out count nowhere."""

    def __init__(
        self, lane: Tensor, y: Tensor, group: Tensor, mask: Tensor, lanes: int, shape: tuple[int, int]
    ) -> None:
        labels, groups = shape
        counted = torch.where(mask, lane, lanes)  # one lane more, for those that do not count
        self._base = ((counted * labels * labels + y) * groups + group).int()
        self._shape = (lanes + 1, labels, labels, groups)

    def tally(self, predicted: Tensor, losses: Tensor) -> Tally:
        """One Tally a lane; summed on the CPU in the order of the rows, so always the same."""
        lanes, labels, _, groups = self._shape
        cell = (self._base + predicted * (labels * groups)).flatten().cpu()
        size = lanes * labels * labels * groups
        confusion = torch.bincount(cell, minlength=size).view(self._shape)
        loss = torch.bincount(cell, losses.flatten().double().cpu(), size).view(self._shape).sum(1)
        return Tally(confusion[:-1], loss[:-1])
