"""Local SGD of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffalm.algorithms import Batch, Measure, ModelVector, Prepared, Rows, Sent, Vectors
from ffalm.engines.common import raised_losses
from ffalm.engines.contract_checks import check_drift
from ffalm.engines.jobs import ClientSpec
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.stacked.kernels import Kernel, Weights, WeightViews, gathered
from ffalm.engines.stacked.losses import Cells, losses_of, predictions, targets
from ffalm.engines.stacked.schedule import Steps
from ffalm.engines.stacked.scoring import StackedRows
from ffalm.fairness import Tally

WINDOW = 512  # lines that are laid out at a time: enough to share the work, few enough to stay in cache


@dataclass(frozen=True)
class LaneResults:
    """What a stack of lanes did, one entry per lane."""

    loss: Tensor  # mean over its steps of the batch's mean loss
    negative: Tensor  # share of its steps in which some row had a negative weight
    tally: Tally | None  # what the algorithm measures
    values: Tensor | None = None  # of the algorithm's `objectives`, (lane, objective)


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


class StepOutput(NamedTuple):
    """What a step computed, each (lane, place)."""

    losses: Tensor
    weights: Tensor  # of the rows; negative where the step raises a row's loss
    predicted: Tensor | None  # where a Tally is wanted


@dataclass(frozen=True)
class LaneInput:
    """What lanes start from besides their weights: the server's state and vectors, and their own vectors."""

    sent: Sent
    own: Vectors

    def __getitem__(self, lanes: slice) -> LaneInput:
        """That of some lanes."""
        state = {name: value[lanes] for name, value in self.sent.state.items()}
        vectors = {name: value[lanes] for name, value in self.sent.vectors.items()}
        own = {name: value[lanes] for name, value in self.own.items()}
        return LaneInput(Sent(state, self.sent.model[lanes], vectors), own)


def train(
    kernel: Kernel, spec: ClientSpec, weights: Weights, rows: StackedRows, steps: Steps, received: LaneInput, lr: float
) -> LaneResults:
    """Move the weights of each lane along its batches, in place; its Tally is of these, if it measures them."""
    algorithm = spec.algorithm
    on_the_way = algorithm.measure in (Measure.EPOCH, Measure.LAST_BATCH)
    planned = laid_out(kernel, spec, rows, steps, weights.trained[0].dtype)
    seen = _descend_all(kernel, spec, weights, planned, received, lr, on_the_way)
    losses = torch.cat([step.losses for step in seen])
    lowest = torch.cat([step.weights for step in seen]).amin(1)
    loss, negative = per_lane(steps, losses, lowest)
    if not on_the_way:
        return LaneResults(loss, negative, None)
    last = algorithm.measure is Measure.LAST_BATCH
    at = _last_lines(steps) if last else torch.arange(len(steps.rows), device=losses.device)
    y, group = gathered(rows.y, steps.rows[at]), gathered(rows.group, steps.rows[at])
    cells = Cells(steps.lanes[at].unsqueeze(1), y, group, steps.mask()[at], len(loss), rows.shape)
    predicted = torch.cat([step.predicted for step in seen if step.predicted is not None])
    return LaneResults(loss, negative, cells.tally(predicted[at], losses[at]))


def _descend_all(
    kernel: Kernel, spec: ClientSpec, weights: Weights, steps: Iterator[Step], received: LaneInput, lr: float,
    predicting: bool,
) -> list[StepOutput]:  # fmt: skip
    """All steps, each on the lanes that have not yet done all of theirs."""
    everyone = kernel.opened(weights)
    algorithm, task, by_outputs = spec.algorithm, spec.task, spec.algorithm.by_outputs(spec.task)
    lanes, opened, given = 0, everyone, received
    local = _LocalSteps(spec, weights)
    seen = []
    with torch.inference_mode():  # spares every operation its bookkeeping for autograd
        for step in steps:
            if lanes != step.lanes:
                lanes = step.lanes
                opened, given = everyone[:lanes], received[:lanes]
            logits, passed = kernel.forward(opened, step.batch, training=True)
            losses, slope = losses_of(logits, step.target)
            batch = Batch(
                Rows(step.labels, step.groups, step.mask, task), losses, logits if by_outputs else None, step.prepared
            )
            slopes = algorithm.slopes(batch, given.sent.state)
            if not step.whole:
                slopes = slopes * (step.mask.unsqueeze(-1) if by_outputs else step.mask)
            row_weights = 1.0 - 2.0 * raised_losses(slopes, logits, step.labels) if by_outputs else slopes
            seen.append(StepOutput(losses, row_weights, predictions(logits) if predicting else None))
            found = kernel.backward(opened, passed, slopes if by_outputs else slope(slopes))
            local.step(opened, found, given, lr)
    return seen


def laid_out(kernel: Kernel, spec: ClientSpec, rows: StackedRows, steps: Steps, dtype: torch.dtype) -> Iterator[Step]:
    """The steps, a window of them at a time: what does not depend on the weights is done for all of these first."""
    for window in steps.windows(WINDOW):
        with torch.inference_mode(False), torch.no_grad():  # an algorithm may hand these to autograd
            own = window.distinct
            y, group, mask = gathered(rows.y, own.rows), gathered(rows.group, own.rows), own.mask()
            prepared = spec.algorithm.prepare(Rows(y, group, mask, spec.task), dtype)
            prepared = {name: own.repeated(value) for name, value in prepared.items()}
            known = [own.repeated(one) for one in (targets(y, rows.shape[0], dtype, kernel.scale), group, y, mask)]
        parts = zip(*map(window.cut, prepared.values()), strict=True) if prepared else repeat((), len(window.spans))
        yield from map(
            Step,
            [span.lanes for span in window.spans],
            [span.whole for span in window.spans],
            kernel.batches(rows.table, window, training=True),
            *map(window.cut, known),
            [dict(zip(prepared, part, strict=True)) for part in parts],
        )


class _LocalSteps:
    """Local optimisation of many lanes at once: clip, drift, optimiser. Plain SGD has a path of its own."""

    def __init__(self, spec: ClientSpec, weights: Weights) -> None:
        self._algorithm, self._clip = spec.algorithm, spec.training.clip
        self._optimizer = local_optimizer(spec.training)
        self._plain = self._optimizer.plain and not spec.algorithm.overrides("drift")
        moments = 0 if self._plain else self._optimizer.moments
        self._moments = [ModelVector(weights.trained).zeros() for _ in range(moments)]
        self._taken = torch.zeros((), dtype=torch.float64, device=weights.trained[0].device)

    def step(self, opened: WeightViews, gradients: Sequence[Tensor | None], given: LaneInput, lr: float) -> None:
        """One step of each lane along its own gradient."""
        if self._plain:
            _sgd_step(opened.blocks, gradients, lr, self._clip)
            return
        weights, lanes = ModelVector(opened.blocks), slice(0, len(opened.blocks[0]))
        gradient = ModelVector(
            [torch.zeros_like(block) if found is None else found
             for block, found in zip(opened.blocks, gradients, strict=True)]
        )  # fmt: skip
        if self._clip is not None:
            gradient = gradient * (_lane_norms(gradient.tensors).clamp_(min=self._clip).reciprocal_() * self._clip)
        drift = check_drift(self._algorithm, self._algorithm.drift(weights, given.sent, given.own))
        gradient = gradient if drift is None else gradient + drift
        self._taken = self._taken + 1
        moments = [moment[lanes] for moment in self._moments]
        weights.add_(-(self._optimizer.direction(gradient, weights, moments, self._taken) * lr))


def _sgd_step(blocks: Sequence[Tensor], gradients: Sequence[Tensor | None], lr: float, clip: float | None) -> None:
    """One step of SGD in each lane along its own gradient, each lane's norm clipped."""
    used = [(block, gradient) for block, gradient in zip(blocks, gradients, strict=True) if gradient is not None]
    if clip is None:
        for block, gradient in used:
            block.sub_(gradient, alpha=lr)
        return
    scale = _lane_norms([gradient for _, gradient in used]).clamp_(min=clip).reciprocal_()
    for block, gradient in used:
        block.addcmul_(gradient, scale, value=-lr * clip)


def _lane_norms(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of each lane's gradient over all blocks, of shape (lane, 1)."""
    norms: list[Tensor] = [torch.linalg.vector_norm(gradient, dim=1, keepdim=True) for gradient in gradients]
    return reduce(torch.hypot, norms)


def per_lane(steps: Steps, losses: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
    """Each lane's mean batch loss and share of steps with a negative row weight; on the CPU."""
    lane = steps.lanes.cpu()
    taken = torch.bincount(lane).double()
    means = (torch.where(steps.mask(), losses, 0).sum(1) / steps.sizes).double().cpu()
    return torch.bincount(lane, means) / taken, torch.bincount(lane, (lowest < 0).double().cpu()) / taken


def _last_lines(steps: Steps) -> Tensor:
    """The line of each lane's last batch."""
    last = torch.zeros(steps.spans[0].lanes, dtype=torch.long, device=steps.lanes.device)
    return last.scatter_reduce_(0, steps.lanes, torch.arange(len(steps.lanes), device=last.device), "amax")
