"""Local SGD of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, Prepared, State
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


class Step(NamedTuple):
    """One step of the lanes that still train: its batch, what is known of it beforehand, and its lines of `Seen`."""

    batch: Any
    target: Tensor
    known: tuple[Tensor, Tensor, Tensor]  # groups, labels, mask
    prepared: Prepared
    whole: bool  # whether all places count
    losses: Tensor
    lowest: Tensor
    predicted: Tensor | None


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
        torch.empty(steps.rows.shape, dtype=torch.int32, device=like.device) if on_the_way else None,
    )
    _descend_all(kernel, algorithm, weights, _laid_out(kernel, algorithm, rows, steps, seen), state, lr, clip)
    loss, negative = _per_lane(steps, seen)
    if seen.predicted is None:
        return Trained(loss, negative, None)
    last = algorithm.measure is Measure.LAST_BATCH
    at = _last_lines(steps) if last else torch.arange(len(steps.rows), device=like.device)
    y, group = gathered(rows.y, steps.rows[at]), gathered(rows.group, steps.rows[at])
    cells = Cells(steps.lanes[at].unsqueeze(1), y, group, steps.mask()[at], len(loss), rows.shape)
    return Trained(loss, negative, cells.tally(seen.predicted[at], seen.losses[at]))


def _descend_all(
    kernel: Kernel, algorithm: Algorithm, weights: Weights, steps: Iterator[Step], state: State, lr: float,
    clip: float | None,
) -> None:  # fmt: skip
    """All steps, each on the lanes that have not yet done all of theirs."""
    everyone = kernel.opened(weights)
    lanes, opened, sent = 0, everyone, state
    with torch.inference_mode():  # spares every operation its bookkeeping for autograd
        for step in steps:
            if lanes != len(step.losses):
                lanes = len(step.losses)
                opened = everyone[:lanes]
                sent = {name: value[:lanes] for name, value in state.items()}
            logits, passed = kernel.forward(opened, step.batch, training=True)
            losses, slope = losses_of(logits, step.target, out=step.losses)
            known = (*step.known, sent, step.prepared) if step.prepared else (*step.known, sent)
            row_weights = algorithm.row_weights(losses, *known)
            if not step.whole:
                row_weights = row_weights * step.known[2]
            if step.predicted is not None:
                step.predicted.copy_(predictions(logits))
            _descend(opened.blocks, kernel.backward(opened, passed, slope(row_weights)), lr, clip)
            torch.amin(row_weights, -1, out=step.lowest)


def _laid_out(kernel: Kernel, algorithm: Algorithm, rows: Rows, steps: Steps, seen: Seen) -> Iterator[Step]:
    """The steps, a window of them at a time: what does not depend on the weights is done for all of these first."""
    dtype = seen.losses.dtype
    for window in steps.windows(_WINDOW):
        at = slice(window.first, window.first + len(window.rows))
        with torch.inference_mode(False), torch.no_grad():  # an algorithm may hand these to autograd
            y, group, mask = gathered(rows.y, window.rows), gathered(rows.group, window.rows), window.mask()
            prepared = algorithm.prepare(group, y, mask, dtype)
        parts = {name: window.cut(value) for name, value in prepared.items()}
        yield from map(
            Step,
            kernel.batches(rows.table, window, training=True),
            window.cut(targets(y, rows.shape[0], dtype, kernel.scale)),
            zip(window.cut(group), window.cut(y), window.cut(mask), strict=True),
            [{name: part[number] for name, part in parts.items()} for number in range(len(window.spans))],
            [span.whole for span in window.spans],
            window.cut(seen.losses[at]),
            window.cut(seen.lowest[at]),
            [None] * len(window.spans) if seen.predicted is None else window.cut(seen.predicted[at]),
        )


def _descend(blocks: Sequence[Tensor], gradients: Sequence[Tensor | None], lr: float, clip: float | None) -> None:
    """One step of SGD in each lane along its own gradient, each lane's norm clipped."""
    used = [(block, gradient) for block, gradient in zip(blocks, gradients, strict=True) if gradient is not None]
    if clip is None:
        for block, gradient in used:
            block.sub_(gradient, alpha=lr)
        return
    norm = reduce(torch.hypot, [torch.linalg.vector_norm(gradient, dim=1, keepdim=True) for _, gradient in used])
    scale = norm.clamp_(min=clip).reciprocal_()
    for block, gradient in used:
        block.addcmul_(gradient, scale, value=-lr * clip)


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
