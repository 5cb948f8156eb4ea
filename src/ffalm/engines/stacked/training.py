"""Local SGD of many clients at once, and the scoring of many models at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ffalm.algorithms import Algorithm, Measure, State
from ffalm.engines.stacked.kernels import Kernel, Table, Weights, gathered
from ffalm.engines.stacked.schedule import Steps, scoring_steps
from ffalm.fairness import Tally

_EXACT_UP_TO = 40.0  # beyond this log(1 + exp(m)) is m in float64 too


@dataclass(frozen=True)
class Rows:
    """Every row of every client and validation part, resident on the device."""

    table: Table
    y: Tensor
    group: Tensor
    shape: tuple[int, int]  # labels, groups


@dataclass(frozen=True)
class Trained:
    """What a stack of lanes did, one entry a lane."""

    loss: Tensor  # mean over its steps of the batch's mean loss
    negative: Tensor  # share of its steps in which some row had a negative weight
    tally: Tally | None  # what the algorithm asked for


def train(
    kernel: Kernel,
    algorithm: Algorithm,
    weights: Weights,
    rows: Rows,
    steps: Steps,
    state: State,
    lr: float,
    clip: float | None,
    measure: Measure,
) -> Trained:
    """Move the weights of each lane along its batches, in place; its Tally is of what it saw on the way, if asked."""
    y, group, mask = gathered(rows.y, steps.rows), gathered(rows.group, steps.rows), steps.mask()
    seen = torch.empty(steps.rows.shape, dtype=weights.trained[0].dtype, device=y.device)
    lowest = torch.empty(len(y), dtype=seen.dtype, device=y.device)
    predicted = torch.empty_like(y) if measure in (Measure.EPOCH, Measure.LAST_BATCH) else None
    batches = kernel.batches(rows.table, steps, training=True)
    for span in steps.spans:
        lines, now = span.lines, weights.first(span.lanes)
        logits, passed = kernel.forward(now, batches, span, training=True)
        losses, slope = losses_of(logits, y[lines])
        sent = {name: value[: span.lanes] for name, value in state.items()}
        row_weights = _row_weights(algorithm, losses, group[lines], y[lines], mask[lines], sent)
        if not span.whole:
            row_weights = row_weights * mask[lines]
        _descend(now.trained, kernel.backward(now, passed, slope(row_weights)), lr, clip)
        seen[lines] = losses
        torch.amin(row_weights, -1, out=lowest[lines])
        if predicted is not None:
            predicted[lines] = predictions(logits)
    loss, negative = _per_lane(steps, mask, seen, lowest)
    if predicted is None:
        return Trained(loss, negative, None)
    at = torch.arange(len(y), device=y.device) if measure is Measure.EPOCH else _last_lines(steps)
    tally = _tally(predicted[at], seen[at], y[at], group[at], mask[at], steps.lanes[at], len(loss), rows.shape)
    return Trained(loss, negative, tally)


def score(kernel: Kernel, weights: Weights, rows: Rows, spans: Sequence[tuple[int, int]], width: int) -> Tally:
    """The Tally of each copy of a model on its own rows, given as (first row, number of rows), on the CPU."""
    device = rows.y.device
    order = sorted(range(len(spans)), key=lambda copy: -spans[copy][1])
    steps = scoring_steps([spans[copy] for copy in order], min(width, max(count for _, count in spans)), device)
    placed = weights.select(torch.tensor(order, device=device))
    y, group = gathered(rows.y, steps.rows), gathered(rows.group, steps.rows)
    losses = torch.empty(y.shape, dtype=weights.trained[0].dtype, device=device)
    predicted = torch.empty_like(y)
    batches = kernel.batches(rows.table, steps, training=False)
    for span in steps.spans:
        logits, _ = kernel.forward(placed.first(span.lanes), batches, span, training=False)
        losses[span.lines], _ = losses_of(logits, y[span.lines])
        predicted[span.lines] = predictions(logits)
    found = _tally(predicted, losses, y, group, steps.mask(), steps.lanes, len(order), rows.shape)
    return found[torch.tensor(order).argsort()]


def losses_of(logits: Tensor, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Softmax cross-entropy of each row, and what turns weights of rows into their gradient by the logits.

    Of two labels it is log(1 + exp(m)), with m by how much the other label's logit exceeds that of the row's own.
    """
    if logits.shape[-1] == 2:
        sign = 1 - 2 * y.to(logits.dtype)
        excess = (logits[..., 1] - logits[..., 0]).mul_(sign)

        def of_two(weights: Tensor) -> Tensor:
            pushed = torch.sigmoid(excess).mul_(sign).mul_(weights)
            return torch.stack([-pushed, pushed], -1)

        return softplus(excess, threshold=_EXACT_UP_TO), of_two
    logs = logits.log_softmax(-1)
    own = y.unsqueeze(-1)

    def of_many(weights: Tensor) -> Tensor:
        pushed = logs.exp().mul_(weights.unsqueeze(-1))
        return pushed.scatter_add_(-1, own, -weights.unsqueeze(-1))

    return -logs.gather(-1, own).squeeze(-1), of_many


def predictions(logits: Tensor) -> Tensor:
    """The label with the largest logit, the first of equals."""
    return logits[..., 1] > logits[..., 0] if logits.shape[-1] == 2 else logits.argmax(-1)


def _row_weights(
    algorithm: Algorithm, losses: Tensor, group: Tensor, y: Tensor, mask: Tensor, state: State
) -> Tensor:
    """The objective's derivative by each row's loss: all that an algorithm has to say about a step."""
    free = losses.detach().requires_grad_()
    objective = algorithm.objective(free, group, y, mask, state)
    (weights,) = torch.autograd.grad(objective.sum(), free)
    return weights


def _descend(entries: list[Tensor], gradients: Sequence[Tensor | None], lr: float, clip: float | None) -> None:
    """One step of SGD in each lane along its own gradient, each lane's norm clipped."""
    used = [(entry, gradient) for entry, gradient in zip(entries, gradients, strict=True) if gradient is not None]
    lanes = len(entries[0])
    norms = torch.stack([torch.linalg.vector_norm(gradient.reshape(lanes, -1), dim=1) for _, gradient in used])
    norm = torch.linalg.vector_norm(norms, dim=0)
    scale = torch.ones_like(norm) if clip is None else (clip / norm).clamp(max=1.0)
    for entry, gradient in used:
        entry.addcmul_(gradient, scale.view(lanes, *[1] * (gradient.ndim - 1)).to(entry.dtype), value=-lr)


def _per_lane(steps: Steps, mask: Tensor, seen: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
    """Each lane's mean batch loss and share of steps with a negative row weight; on the CPU."""
    lane = steps.lanes.cpu()
    taken = torch.bincount(lane).double()
    means = (torch.where(mask, seen, 0).sum(1) / steps.sizes).double().cpu()
    return torch.bincount(lane, means) / taken, torch.bincount(lane, (lowest < 0).double().cpu()) / taken


def _last_lines(steps: Steps) -> Tensor:
    """The line of each lane's last batch."""
    last = torch.zeros(steps.spans[0].lanes, dtype=torch.long, device=steps.lanes.device)
    return last.scatter_reduce_(0, steps.lanes, torch.arange(len(steps.lanes), device=last.device), "amax")


def _tally(
    predicted: Tensor, losses: Tensor, y: Tensor, group: Tensor, mask: Tensor, lane: Tensor, lanes: int,
    shape: tuple[int, int],
) -> Tally:  # fmt: skip
    """One Tally a lane from lines of rows; summed on the CPU in the order of the lines, so always the same."""
    labels, groups = shape
    cell = ((lane.unsqueeze(1) * labels + predicted) * labels + y) * groups + group
    kept = cell[mask].cpu()
    cells = lanes * labels * labels * groups
    confusion = torch.bincount(kept, minlength=cells).view(lanes, labels, labels, groups)
    loss = torch.bincount(kept, losses[mask].double().cpu(), cells).view(lanes, labels, labels, groups).sum(1)
    return Tally(confusion, loss)
