"""The reference engine: one client after the other, one batch after the other. Plain, obvious and slow.

It runs any `nn.Module` on CPU or CUDA. Every other engine must give its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure
from ffalm.data.types import Examples, Task
from ffalm.engines.base import Job, Local, Round, Snapshot
from ffalm.engines.common import (
    autocast,
    average,
    broadcast,
    built_model,
    descend,
    dtype_of,
    evaluate,
    inputs,
    row_losses,
)
from ffalm.engines.rounds import Reply, Terms, rounds
from ffalm.engines.sampling import batches
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded


class LoopEngine:
    """Clients in a Python loop."""

    name: ClassVar[str] = "loop"
    together: ClassVar[bool] = False
    spreads: ClassVar[bool] = False

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            for round in rounds(Terms.of(job), LoopClients(job)):
                yield number, round


class Learner:
    """Local rounds and scores on one module, whoever's rows they are."""

    def __init__(self, work: Local, task: Task) -> None:
        self._work, self._task = work, task
        self._model = built_model(work)

    def fresh(self) -> dict[str, Tensor]:
        """The freshly initialised model, as long as nothing was learnt or scored."""
        return _copy(self._model)

    def score(self, model: dict[str, Tensor], examples: Examples) -> Tally:
        """The Tally of a model on examples."""
        self._model.load_state_dict(model)
        return self._tally(examples)

    def learn(self, client: int, examples: Examples, sent: Snapshot) -> Reply:
        """Local SGD from the received model, and the Tally that the algorithm asks for."""
        work, model, round = self._work, self._model, sent.round + 1
        wanted = work.algorithm.measure
        shape = (self._task.labels, self._task.groups)
        tally = Tally.zeros(shape)
        model.load_state_dict(sent.model)
        if wanted is Measure.RECEIVED:
            tally = self._tally(examples)
        dtype = dtype_of(model)
        state = broadcast(work.algorithm, sent.state, dtype, work.device)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        steps = batches(work.seed, round, client, len(examples), work.training)
        loss, negative = torch.zeros(2, dtype=torch.float64, device=work.device).unbind()
        model.train()
        with torch_seeded(work.seed, Purpose.LAYERS, round, client):
            for step, rows in enumerate(steps, start=1):
                batch = examples.take(rows.to(work.device))
                with autocast(work):
                    losses, logits = row_losses(model, inputs(batch.x, dtype), batch.y, self._task.labels)
                everyone = torch.ones_like(batch.y, dtype=torch.bool)
                weights = work.algorithm.row_weights(losses.detach(), batch.group, batch.y, everyone, state)
                descend(parameters, losses, weights, work.training.lr_at(round), work.training.clip)
                loss += losses.detach().mean()
                negative += (weights < 0).any()
                if wanted is Measure.EPOCH or (wanted is Measure.LAST_BATCH and step == len(steps)):
                    tally = tally + Tally.of(logits.argmax(-1), losses, batch.y, batch.group, shape).to("cpu")
        if wanted is Measure.TRAINED:
            tally = self._tally(examples)
        return Reply(_copy(model), tally, float(loss) / len(steps), float(negative) / len(steps))

    def _tally(self, examples: Examples) -> Tally:
        with autocast(self._work):
            return evaluate(self._model, examples, self._task)


class LoopClients:
    """Clients that take turns on one module."""

    def __init__(self, job: Job) -> None:
        self._learner = Learner(job, job.federation.task)
        self._clients = [examples.to(job.device) for examples in job.federation.clients]
        validation = job.federation.validation
        self._validation = None if validation is None else validation.to(job.device)

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        return self._learner.fresh()

    def merge(self, replies: Sequence[Reply], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of the replies' models."""
        return average([reply.model for reply in replies], weights)

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model."""
        return None if self._validation is None else self._learner.score(model, self._validation)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, Reply]:
        """One client after the other."""
        return {client: self._learner.learn(client, self._clients[client], sent) for client in chosen}


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """A model's complete state, apart from the model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
