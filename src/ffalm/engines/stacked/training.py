"""Local SGD of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, Prepared, State
from ffalm.engines.stacked.kernels import Kernel, Weights, gathered
from ffalm.engines.stacked.losses import Cells, losses_of, predictions, targets
from ffalm.engines.stacked.schedule import Steps
from ffalm.engines.stacked.scoring import Rows
from ffalm.fairness import Tally

WINDOW = 512  # lines that are laid out at a time: enough to share the work, few enough to stay in cache


@dataclass(frozen=True)
class Trained:
    """What a stack of lanes did, one entry a lane."""

    loss: Tensor  # mean over its steps of the batch's mean loss
    negative: Tensor  # share of its steps in which some row had a negative weight
    tally: Tally | None  # what the algorithm asked for


class Step(NamedTuple):
    """One step of the lanes that still train: its batch, and what is known of it beforehand."""

    lanes: int
    whole: bool  # whether all places count
    batch: Any
    target: Tensor
    groups: Tensor
    labels: Tensor
    mask: Tensor
    prepared: Prepared


class Seen(NamedTuple):
    """What a step came across, each (lane, place)."""

    losses: Tensor
    weights: Tensor  # of the rows
    predicted: Tensor | None  # where a Tally is wanted


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
    planned = _laid_out(kernel, algorithm, rows, steps, weights.trained[0].dtype)
    seen = _descend_all(kernel, algorithm, weights, planned, state, lr, clip, on_the_way)
    losses = torch.cat([step.losses for step in seen])
    lowest = torch.cat([step.weights for step in seen]).amin(1)
    loss, negative = _per_lane(steps, losses, lowest)
    if not on_the_way:
        return Trained(loss, negative, None)
    last = algorithm.measure is Measure.LAST_BATCH
    at = _last_lines(steps) if last else torch.arange(len(steps.rows), device=losses.device)
    y, group = gathered(rows.y, steps.rows[at]), gathered(rows.group, steps.rows[at])
    cells = Cells(steps.lanes[at].unsqueeze(1), y, group, steps.mask()[at], len(loss), rows.shape)
    predicted = torch.cat([step.predicted for step in seen if step.predicted is not None])
    return Trained(loss, negative, cells.tally(predicted[at], losses[at]))


def _descend_all(
    kernel: Kernel, algorithm: Algorithm, weights: Weights, steps: Iterator[Step], state: State, lr: float,
    clip: float | None, predicting: bool,
) -> list[Seen]:  # fmt: skip
    """All steps, each on the lanes that have not yet done all of theirs."""
    everyone = kernel.opened(weights)
    lanes, opened, sent = 0, everyone, state
    seen = []
    with torch.inference_mode():  # spares every operation its bookkeeping for autograd
        for step in steps:
            if lanes != step.lanes:
                lanes = step.lanes
                opened = everyone[:lanes]
                sent = {name: value[:lanes] for name, value in state.items()}
            logits, passed = kernel.forward(opened, step.batch, training=True)
            losses, slope = losses_of(logits, step.target)
            known = (sent, step.prepared) if step.prepared else (sent,)
            row_weights = algorithm.row_weights(losses, step.groups, step.labels, step.mask, *known)
            if not step.whole:
                row_weights = row_weights * step.mask
            seen.append(Seen(losses, row_weights, predictions(logits) if predicting else None))
            _descend(opened.blocks, kernel.backward(opened, passed, slope(row_weights)), lr, clip)
    return seen


def _laid_out(kernel: Kernel, algorithm: Algorithm, rows: Rows, steps: Steps, dtype: torch.dtype) -> Iterator[Step]:
    """The steps, a window of them at a time: what does not depend on the weights is done for all of these first."""
    for window in steps.windows(WINDOW):
        with torch.inference_mode(False), torch.no_grad():  # an algorithm may hand these to autograd
            y, group, mask = gathered(rows.y, window.rows), gathered(rows.group, window.rows), window.mask()
            prepared = algorithm.prepare(group, y, mask, dtype)
        target = targets(y, rows.shape[0], dtype, kernel.scale)
        parts = zip(*map(window.cut, prepared.values()), strict=True) if prepared else repeat((), len(window.spans))
        yield from map(
            Step,
            [span.lanes for span in window.spans],
            [span.whole for span in window.spans],
            kernel.batches(rows.table, window, training=True),
            *map(window.cut, (target, group, y, mask)),
            [dict(zip(prepared, own, strict=True)) for own in parts],
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


def _per_lane(steps: Steps, losses: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
    """Each lane's mean batch loss and share of steps with a negative row weight; on the CPU."""
    lane = steps.lanes.cpu()
    taken = torch.bincount(lane).double()
    means = (torch.where(steps.mask(), losses, 0).sum(1) / steps.sizes).double().cpu()
    return torch.bincount(lane, means) / taken, torch.bincount(lane, (lowest < 0).double().cpu()) / taken


def _last_lines(steps: Steps) -> Tensor:
    """The line of each lane's last batch."""
    last = torch.zeros(steps.spans[0].lanes, dtype=torch.long, device=steps.lanes.device)
    return last.scatter_reduce_(0, steps.lanes, torch.arange(len(steps.lanes), device=last.device), "amax")
