"""Local SGD of many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, State
from ffalm.engines.stacked.kernels import Kernel, Weights, gathered
from ffalm.engines.stacked.losses import Cells, losses_of, predictions, targets
from ffalm.engines.stacked.schedule import Steps
from ffalm.engines.stacked.scoring import Rows
from ffalm.fairness import Tally

_WINDOW = 512  # lines that are laid out at a time: enough to share the work, few enough to stay in cache


@dataclass(frozen=True)
class Trained:
    """What a stack of lanes did, one entry a lane."""

    loss: Tensor  # mean over its steps of the batch's mean loss
    negative: Tensor  # share of its steps in which some row had a negative weight
    tally: Tally | None  # what the algorithm asked for


@dataclass(frozen=True)
class Seen:
    """What training came across, one line a (step, lane)."""

    losses: Tensor  # (line, place)
    lowest: Tensor  # (line) the smallest weight of a row
    predicted: Tensor | None  # (line, place), where a Tally is wanted


def train(
    kernel: Kernel,
    algorithm: Algorithm,
    weights: Weights,
    rows: Rows,
    steps: Steps,
    state: State,
    lr: float,
    clip: float | None,
) -> Trained:
    """Move the weights of each lane along its batches, in place; its Tally is of what it saw on the way, if asked."""
    on_the_way = algorithm.measure in (Measure.EPOCH, Measure.LAST_BATCH)
    like = weights.trained[0]
    seen = Seen(
        torch.empty(steps.rows.shape, dtype=like.dtype, device=like.device),
        torch.empty(len(steps.rows), dtype=like.dtype, device=like.device),
        torch.empty(steps.rows.shape, dtype=torch.long, device=like.device) if on_the_way else None,
    )
    for window in steps.windows(_WINDOW):
        _train_window(kernel, algorithm, weights, rows, window, state, lr, clip, seen)
    loss, negative = _per_lane(steps, seen)
    if seen.predicted is None:
        return Trained(loss, negative, None)
    last = algorithm.measure is Measure.LAST_BATCH
    at = _last_lines(steps) if last else torch.arange(len(steps.rows), device=like.device)
    y, group = gathered(rows.y, steps.rows[at]), gathered(rows.group, steps.rows[at])
    cells = Cells(steps.lanes[at], y, group, steps.mask()[at], len(loss), rows.shape)
    return Trained(loss, negative, cells.tally(seen.predicted[at], seen.losses[at]))


def _train_window(
    kernel: Kernel, algorithm: Algorithm, weights: Weights, rows: Rows, window: Steps, state: State, lr: float,
    clip: float | None, seen: Seen,
) -> None:  # fmt: skip
    """A few steps: what does not depend on the weights is done for all of them first."""
    y, group, mask = gathered(rows.y, window.rows), gathered(rows.group, window.rows), window.mask()
    with torch.inference_mode():  # spares every operation its bookkeeping for autograd
        target = targets(y, rows.shape[0], seen.losses.dtype)
        batches = kernel.batches(rows.table, window, training=True)
        for span in window.spans:
            lines, now = span.lines, weights.first(span.lanes)
            logits, passed = kernel.forward(now, batches, span, training=True)
            losses, slope = losses_of(logits, target[lines])
            sent = {name: value[: span.lanes] for name, value in state.items()}
            row_weights = algorithm.row_weights(losses, group[lines], y[lines], mask[lines], sent)
            if not span.whole:
                row_weights = row_weights * mask[lines]
            _descend(now.trained, kernel.backward(now, passed, slope(row_weights)), lr, clip)
            at = slice(window.first + lines.start, window.first + lines.stop)
            seen.losses[at] = losses
            torch.amin(row_weights, -1, out=seen.lowest[at])
            if seen.predicted is not None:
                seen.predicted[at] = predictions(logits)


def _descend(entries: list[Tensor], gradients: Sequence[Tensor | None], lr: float, clip: float | None) -> None:
    """One step of SGD in each lane along its own gradient, each lane's norm clipped."""
    used = [(entry, gradient) for entry, gradient in zip(entries, gradients, strict=True) if gradient is not None]
    lanes = len(entries[0])
    if clip is None:
        for entry, gradient in used:
            entry.sub_(gradient, alpha=lr)
        return
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for _, gradient in used])
    scale = (clip / torch.linalg.vector_norm(norms, dim=0)).clamp_(max=1.0)
    for entry, gradient in used:
        entry.addcmul_(gradient, scale.view(lanes, *[1] * (gradient.ndim - 1)), value=-lr)


def _per_lane(steps: Steps, seen: Seen) -> tuple[Tensor, Tensor]:
    """Each lane's mean batch loss and share of steps with a negative row weight; on the CPU."""
    lane = steps.lanes.cpu()
    taken = torch.bincount(lane).double()
    means = (torch.where(steps.mask(), seen.losses, 0).sum(1) / steps.sizes).double().cpu()
    return torch.bincount(lane, means) / taken, torch.bincount(lane, (seen.lowest < 0).double().cpu()) / taken


def _last_lines(steps: Steps) -> Tensor:
    """The line of each lane's last batch."""
    last = torch.zeros(steps.spans[0].lanes, dtype=torch.long, device=steps.lanes.device)
    return last.scatter_reduce_(0, steps.lanes, torch.arange(len(steps.lanes), device=last.device), "amax")
