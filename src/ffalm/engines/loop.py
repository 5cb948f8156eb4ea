"""The reference engine: one client after the other, one batch after the other. Plain, obvious and slow.

It runs any `nn.Module` on CPU or CUDA. Every other engine must give its numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure, Report, State
from ffalm.data.types import Examples
from ffalm.engines.base import Job, Round, Snapshot
from ffalm.engines.common import (
    average,
    broadcast,
    built_model,
    divergence,
    dtype_of,
    evaluate,
    inputs,
    record_of,
    row_losses,
)
from ffalm.engines.sampling import batches, participants
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded


class LoopEngine:
    """Clients in a Python loop."""

    name: ClassVar[str] = "loop"
    together: ClassVar[bool] = False

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            for round in _rounds(job):
                yield number, round


@dataclass(frozen=True)
class _Reply:
    """What a client sends back: its model, its Tally, and what its training looked like."""

    model: dict[str, Tensor]
    tally: Tally
    loss: float  # mean over its steps of the batch's mean loss
    negative: float  # share of its steps in which some row had a negative weight


def _rounds(job: Job) -> Iterator[Round]:
    """The rounds of one job."""
    federation, algorithm, training = job.federation, job.algorithm, job.training
    model = built_model(job)
    clients = [examples.to(job.device) for examples in federation.clients]
    validation = None if federation.validation is None else federation.validation.to(job.device)
    counts = federation.counts()
    now = job.start or Snapshot(0, _copy(model), algorithm.start(counts))
    for number in range(now.round + 1, training.rounds + 1):
        began = time.perf_counter()
        chosen = participants(job.seed, number, len(clients), training.participation)
        replies = [_train_client(job, model, now, clients[client], client) for client in chosen]
        report = _report(job, number, chosen, replies, counts)
        weights, state = algorithm.update(now.state, report)
        now = Snapshot(number, average([reply.model for reply in replies], weights[chosen]), state)
        model.load_state_dict(now.model)
        loss = sum(reply.loss for reply in replies) / len(replies)
        seen = {
            "train_loss": loss,
            "negative_weight_share": sum(reply.negative for reply in replies) / len(replies),
            "seconds": time.perf_counter() - began,
        }
        scores = None if validation is None else evaluate(model, validation, federation.task)
        record = record_of(number, scores, federation.task.favourable, state, weights, seen)
        ended = divergence(algorithm, number, loss, state, now.model)
        yield Round(record, now, ended)
        if ended:
            return


def _train_client(job: Job, model: nn.Module, sent: Snapshot, examples: Examples, client: int) -> _Reply:
    """A client's round: local SGD from the received model, and the Tally that the algorithm asks for."""
    algorithm, training, task = job.algorithm, job.training, job.federation.task
    shape = (task.labels, task.groups)
    round = sent.round + 1
    model.load_state_dict(sent.model)
    tally = Tally.zeros(shape)
    if algorithm.measure is Measure.RECEIVED:
        tally = evaluate(model, examples, task)
    dtype = dtype_of(model)
    state = broadcast(algorithm, sent.state, dtype, job.device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    steps = batches(job.seed, round, client, len(examples), training)
    total, negative = torch.zeros((), device=job.device), torch.zeros((), device=job.device)
    model.train()
    with torch_seeded(job.seed, Purpose.LAYERS, round, client):
        for step, rows in enumerate(steps):
            batch = examples.take(rows.to(job.device))
            losses, logits = row_losses(model, inputs(batch.x, dtype), batch.y, task.labels)
            weights = _row_weights(job, losses, batch, state)
            _descend(parameters, losses, weights, training.lr_at(round), training.clip)
            total += losses.detach().mean()
            negative += (weights < 0).any()
            last = step == len(steps) - 1
            if algorithm.measure is Measure.EPOCH or (algorithm.measure is Measure.LAST_BATCH and last):
                tally = tally + Tally.of(logits.argmax(-1), losses, batch.y, batch.group, shape).to("cpu")
    if algorithm.measure is Measure.TRAINED:
        tally = evaluate(model, examples, task)
    return _Reply(_copy(model), tally, float(total) / len(steps), float(negative) / len(steps))


def _row_weights(job: Job, losses: Tensor, batch: Examples, state: State) -> Tensor:
    """The objective's derivative by each row's loss: all that an algorithm has to say about a step."""
    free = losses.detach().requires_grad_()
    mask = torch.ones_like(batch.y, dtype=torch.bool)
    objective = job.algorithm.objective(free, batch.group, batch.y, mask, state)
    (weights,) = torch.autograd.grad(objective, free)
    return weights


def _descend(parameters: list[nn.Parameter], losses: Tensor, weights: Tensor, lr: float, clip: float | None) -> None:
    """One step of SGD along the weighted sum of row gradients, its norm clipped."""
    gradients = torch.autograd.grad(losses, parameters, weights, allow_unused=True)
    used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    norm = torch.stack([gradient.norm() for _, gradient in used]).norm()
    scale = 1.0 if clip is None else (clip / norm).clamp(max=1.0)
    with torch.no_grad():
        for parameter, gradient in used:
            parameter.sub_(lr * scale * gradient)


def _report(job: Job, round: int, chosen: list[int], replies: list[_Reply], counts: Tensor) -> Report:
    """The clients' answers, laid out one entry a client of the whole federation."""
    task = job.federation.task
    taking_part = torch.zeros(len(counts), dtype=torch.bool)
    taking_part[chosen] = True
    tally = None
    if job.algorithm.measure is not Measure.NOTHING:
        rows = [Tally.zeros((task.labels, task.groups)) for _ in range(len(counts))]
        for client, reply in zip(chosen, replies, strict=True):
            rows[client] = reply.tally
        tally = Tally.stack(rows)
    return Report(round, counts.sum((-1, -2)), taking_part, tally, task.favourable)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """A model's complete state, apart from the model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
