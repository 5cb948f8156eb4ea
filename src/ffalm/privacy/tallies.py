"""Tallies with noise.

How many rows of each (label, group) a client has is public, so noise is needed only on what the model does with them:
how many rows of a cell get which prediction, and the sum of their losses. Replacing the rows of a client that has n
rows in a cell moves the predictions there by at most sqrt(2) n and the losses, divided by their bound, by at most n:
over all cells by no more than sqrt(3) |n|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ffalm.fairness import Tally


def reach(counts: Tensor) -> float:
    """Half of how far a client with so many rows per (label, group) can move a Tally."""
    return math.sqrt(3) / 2 * float(counts.double().norm())


def noisy_tally(tallies: Sequence[Tally], bound: float, multiplier: float, draws: Tensor) -> Tally:
    """The sum of clients' Tallies with noise of `multiplier` times the largest reach; its counts stay as they are.

    The mean loss of a client's cell counts up to `bound`. Predictions are made whole again: none below 0, and as many
    in a cell as it has rows. Losses stay as the noise leaves them, even below 0: cutting them would make small groups
    look worse off than they are, on average and every round. `draws` are as many numbers as `size_of` says.
    """
    total = bounded(tallies[0], bound)
    for tally in tallies[1:]:
        total = total + bounded(tally, bound)
    spread = multiplier * max(reach(tally.count) for tally in tallies)
    of_predictions, of_losses = torch.split(draws, [total.confusion.numel(), total.loss.numel()])
    loss = total.loss + bound * spread * of_losses.view(total.loss.shape)
    confusion = total.confusion + spread * of_predictions.view(total.confusion.shape)
    return made_whole(Tally(confusion, loss, total.excluded), total.count)


def made_whole(noisy: Tally, rows: Tensor) -> Tally:
    """A noisy Tally whose predictions are possible again: none below 0, as many in a cell as its public rows."""
    confusion = _filled(noisy.confusion.clamp(min=0), rows)
    return Tally(confusion, noisy.loss.masked_fill(rows == 0, 0.0), noisy.excluded)


def size_of(tally: Tally) -> int:
    """How many numbers there are in a Tally without leading axes."""
    return tally.confusion.numel() + tally.loss.numel()


def bounded(tally: Tally, bound: float) -> Tally:
    """Losses within what is possible under the bound, whatever was reported."""
    ceiling = bound * tally.count
    loss = torch.minimum(tally.loss.nan_to_num(math.inf).clamp(min=0), ceiling.double())
    return Tally(tally.confusion.double(), loss, tally.excluded)


def _filled(confusion: Tensor, rows: Tensor) -> Tensor:
    """Predictions scaled so that each cell has as many as rows; spread evenly if none are left."""
    found = confusion.sum(-3)
    even = (rows / confusion.shape[-3]).expand_as(confusion)
    scale = torch.where(found == rows, 1.0, rows / found.clamp(min=torch.finfo(found.dtype).tiny))
    return torch.where(found > 0, confusion * scale, even)
