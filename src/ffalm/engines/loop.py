"""The reference engine: one client after the other, one batch after the other. Plain, obvious and slow.

It runs any `nn.Module` on CPU or CUDA. Every other engine must give its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure, Rows
from ffalm.data.types import Examples
from ffalm.engines.common import (
    autocast,
    broadcast,
    broadcast_vectors,
    built_model,
    dtype_of,
    evaluate,
    evaluate_with_scores,
    gradients,
    inputs,
    logits_of,
    objective_gradients,
    own_state,
    row_losses,
)
from ffalm.engines.jobs import ClientSpec, Engine, Job, Model, Round, Snapshot, Together
from ffalm.engines.local import LocalOptimizer
from ffalm.engines.sampling import batches
from ffalm.engines.server import Clients, ClientUpdate, ServerContext, rounds
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.randomness import Purpose, torch_seeded


class LoopEngine(Engine):
    """Clients in a Python loop; it runs everything."""

    name: ClassVar[str] = "loop"
    together: ClassVar[Together] = Together.NONE
    spreads: ClassVar[bool] = False

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            for round in rounds(ServerContext.of(job), LoopClients(job)):
                yield number, round


class Learner:
    """Local training and scoring on one module, whoever's rows they are."""

    def __init__(self, spec: ClientSpec) -> None:
        self._spec, self._task = spec, spec.task
        self._model = built_model(spec)
        self._parameters = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
        self._local = LocalOptimizer(spec, self._parameters)

    def fresh(self) -> Model:
        """The freshly initialised model, as long as nothing was trained or scored."""
        return _copy(self._model)

    def score(self, model: Model, examples: Examples) -> Tally:
        """The Tally of a model on examples."""
        self._model.load_state_dict(model)
        return self._tally(examples)

    def histogram(self, model: Model, examples: Examples) -> ScoreHistogram:
        """The histogram of a model's scores on examples."""
        self._model.load_state_dict(model)
        with autocast(self._spec):
            return evaluate_with_scores(self._model, examples, self._task)[1]

    def logits(self, model: Model, examples: Examples) -> Tensor:
        """A model's logits of each row."""
        self._model.load_state_dict(model)
        with autocast(self._spec):
            return logits_of(self._model, examples, self._task)

    def learn(
        self, client: int, examples: Examples, sent: Snapshot, own: dict[str, Model] | None = None
    ) -> ClientUpdate:
        """Local training from the received model, and the Tally that the algorithm measures.

        `own` is the client's vectors of its last round; those of its first are 0.
        """
        spec, model, round = self._spec, self._model, sent.round + 1
        measure = spec.algorithm.measure
        shape = (self._task.labels, self._task.groups)
        tally = Tally.zeros(shape)
        model.load_state_dict(sent.model)
        if measure is Measure.RECEIVED:
            tally = self._tally(examples)
        dtype = dtype_of(model)
        state = broadcast(spec.algorithm, sent.state, dtype, spec.device)
        if spec.algorithm.overrides("own_state"):
            state |= own_state(spec.algorithm, self._task, examples.counts(self._task), dtype, spec.device)
        parameters = list(self._parameters.values())
        lr = spec.training.lr_at(round)
        row_batches = batches(spec.seed, round, client, len(examples), spec.training)
        loss, negative = torch.zeros(2, dtype=torch.float64, device=spec.device).unbind()
        objective_values: Tensor | None = None
        gradient_uploads: dict[str, Model] = {}
        self._local.begin(state, broadcast_vectors(spec.algorithm, sent.vectors), own or self._no_vectors())
        model.train()
        with torch_seeded(spec.seed, Purpose.LAYERS, round, client):
            for step, row_numbers in enumerate(row_batches, start=1):
                batch = examples.take(row_numbers.to(spec.device))
                with autocast(spec):
                    losses, logits = row_losses(model, inputs(batch.x, dtype), batch.y, self._task.labels)
                rows = Rows(batch.y, batch.group, torch.ones_like(batch.y, dtype=torch.bool), self._task)
                loss += losses.detach().mean()
                if spec.algorithm.gradients:
                    objective_values, by_objective = objective_gradients(
                        parameters, spec.algorithm, rows, losses, logits, state
                    )
                    by_parameter = [dict(zip(self._parameters, one, strict=True)) for one in by_objective]
                    gradient_uploads = dict(zip(spec.algorithm.gradients, by_parameter, strict=True))
                else:
                    gradient, raises_a_loss = gradients(parameters, spec.algorithm, rows, losses, logits, state)
                    self._local.step(gradient, lr)
                    negative += raises_a_loss
                if measure is Measure.EPOCH or (measure is Measure.LAST_BATCH and step == len(row_batches)):
                    tally = tally + Tally.of(logits.argmax(-1), losses, batch.y, batch.group, shape).to("cpu")
        kept, uploads = self._local.finish(len(row_batches), lr)
        if measure is Measure.TRAINED:
            tally = self._tally(examples)
        return ClientUpdate(
            _copy(model),
            tally,
            float(loss) / len(row_batches),
            float(negative) / len(row_batches),
            {**uploads, **gradient_uploads},
            kept,
            values=None if objective_values is None else objective_values.double().cpu(),
        )

    def _no_vectors(self) -> dict[str, Model]:
        return {
            name: {key: torch.zeros_like(value) for key, value in self._parameters.items()}
            for name in self._spec.algorithm.client_vectors
        }

    def _tally(self, examples: Examples) -> Tally:
        with autocast(self._spec):
            return evaluate(self._model, examples, self._task)


class LoopClients(Clients):
    """Clients that take turns on one module."""

    def __init__(self, job: Job) -> None:
        device = job.spec.device
        self._learner = Learner(job.spec)
        clients = job.federation.clients  # in main memory rows are gathered for each client's turn: all may not fit
        self._clients = clients if device.type == "cpu" else [examples.to(device) for examples in clients]
        validation = job.federation.validation
        self._validation = None if validation is None else validation.to(device)

    def begin(self) -> Model:
        """The freshly initialised model."""
        return self._learner.fresh()

    def validate(self, model: Model) -> Tally | None:
        """The validation part's Tally of a model."""
        return None if self._validation is None else self._learner.score(model, self._validation)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One client after the other."""
        return {
            client: self._learner.learn(client, self._clients[client], sent, client_vectors(sent, client))
            for client in chosen
        }


def client_vectors(sent: Snapshot, client: int) -> dict[str, Model]:
    """What a client kept from its last round, if the engine keeps it for it."""
    return {name: {key: value[client] for key, value in vector.items()} for name, vector in sent.client_vectors.items()}


def _copy(model: nn.Module) -> Model:
    """A model's complete state, apart from the model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
