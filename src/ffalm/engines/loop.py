"""The reference engine: one client after the other, one batch after the other. Plain, obvious and slow.

It runs any `nn.Module` on CPU or CUDA. Every other engine must give its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure, State
from ffalm.data.types import Examples
from ffalm.engines.base import Job, Round, Snapshot
from ffalm.engines.common import broadcast, built_model, dtype_of, evaluate, inputs, row_losses
from ffalm.engines.rounds import Reply, rounds
from ffalm.engines.sampling import batches
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded


class LoopEngine:
    """Clients in a Python loop."""

    name: ClassVar[str] = "loop"
    together: ClassVar[bool] = False

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            for round in rounds(job, _LoopClients(job)):
                yield number, round


class _LoopClients:
    """Clients that take turns on one module."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._task = job.federation.task
        self._model = built_model(job)
        self._clients = [examples.to(job.device) for examples in job.federation.clients]
        validation = job.federation.validation
        self._validation = None if validation is None else validation.to(job.device)

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        return _copy(self._model)

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model."""
        if self._validation is None:
            return None
        self._model.load_state_dict(model)
        return evaluate(self._model, self._validation, self._task)

    def train(self, client: int, sent: Snapshot) -> Reply:
        """Local SGD from the received model, and the Tally that the algorithm asks for."""
        job, model, examples, round = self._job, self._model, self._clients[client], sent.round + 1
        wanted = job.algorithm.measure
        shape = (self._task.labels, self._task.groups)
        tally = Tally.zeros(shape)
        model.load_state_dict(sent.model)
        if wanted is Measure.RECEIVED:
            tally = evaluate(model, examples, self._task)
        dtype = dtype_of(model)
        state = broadcast(job.algorithm, sent.state, dtype, job.device)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        steps = batches(job.seed, round, client, len(examples), job.training)
        loss, negative = torch.zeros((), device=job.device), torch.zeros((), device=job.device)
        model.train()
        with torch_seeded(job.seed, Purpose.LAYERS, round, client):
            for step, rows in enumerate(steps, start=1):
                batch = examples.take(rows.to(job.device))
                losses, logits = row_losses(model, inputs(batch.x, dtype), batch.y, self._task.labels)
                weights = _row_weights(job, losses, batch, state)
                _descend(parameters, losses, weights, job.training.lr_at(round), job.training.clip)
                loss += losses.detach().mean()
                negative += (weights < 0).any()
                if wanted is Measure.EPOCH or (wanted is Measure.LAST_BATCH and step == len(steps)):
                    tally = tally + Tally.of(logits.argmax(-1), losses, batch.y, batch.group, shape).to("cpu")
        if wanted is Measure.TRAINED:
            tally = evaluate(model, examples, self._task)
        return Reply(_copy(model), tally, float(loss) / len(steps), float(negative) / len(steps))


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


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """A model's complete state, apart from the model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
