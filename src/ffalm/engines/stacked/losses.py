"""Losses of stacked rows, their slope, and the Tallies of many lanes at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ffalm.fairness import Tally

_EXACT_UP_TO = 40.0  # beyond this log(1 + exp(m)) is m in float64 too


def targets(y: Tensor, labels: int, dtype: torch.dtype) -> Tensor:
    """Labels as `losses_of` wants them: of two, a sign; of more, the place of the row's own logit."""
    return 1 - 2 * y.to(dtype) if labels == 2 else y.unsqueeze(-1)


def losses_of(logits: Tensor, target: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Softmax cross-entropy of each row, and what turns weights of rows into their gradient by the logits.

    Of two labels it is log(1 + exp(m)), with m by how much the other label's logit exceeds that of the row's own; a
    model may give the second logit minus the first instead of both.
    """
    if logits.shape[-1] <= 2:
        folded = logits.shape[-1] == 1
        excess = (logits[..., 0] if folded else logits[..., 1] - logits[..., 0]) * target

        def of_two(weights: Tensor) -> Tensor:
            pushed = torch.sigmoid(excess).mul_(target).mul_(weights)
            return pushed.unsqueeze(-1) if folded else torch.stack([-pushed, pushed], -1)

        return softplus(excess, threshold=_EXACT_UP_TO), of_two
    logs = logits.log_softmax(-1)

    def of_many(weights: Tensor) -> Tensor:
        pushed = logs.exp().mul_(weights.unsqueeze(-1))
        return pushed.scatter_add_(-1, target, -weights.unsqueeze(-1))

    return -logs.gather(-1, target).squeeze(-1), of_many


def predictions(logits: Tensor) -> Tensor:
    """The label with the largest logit, the first of equals."""
    if logits.shape[-1] == 1:
        return logits[..., 0] > 0
    return logits[..., 1] > logits[..., 0] if logits.shape[-1] == 2 else logits.argmax(-1)


class Cells:
    """Where each row of some lines is counted: lane, label and group; rows that a mask leaves out count nowhere."""

    def __init__(
        self, lane: Tensor, y: Tensor, group: Tensor, mask: Tensor, lanes: int, shape: tuple[int, int]
    ) -> None:
        labels, groups = shape
        counted = torch.where(mask, lane.unsqueeze(1), lanes)  # one lane more, for those that do not count
        self._base = (counted * labels * labels + y) * groups + group
        self._shape = (lanes + 1, labels, labels, groups)

    def tally(self, predicted: Tensor, losses: Tensor) -> Tally:
        """One Tally a lane; summed on the CPU in the order of the rows, so always the same."""
        lanes, labels, _, groups = self._shape
        cell = (self._base + predicted * (labels * groups)).flatten().cpu()
        size = lanes * labels * labels * groups
        confusion = torch.bincount(cell, minlength=size).view(self._shape)
        loss = torch.bincount(cell, losses.flatten().double().cpu(), size).view(self._shape).sum(1)
        return Tally(confusion[:-1], loss[:-1])
