"""The server's part of a round, the same under every engine and in real federations.

report -> client weights and recorded state -> weighted mean -> next model and vectors -> record, divergence
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, Measure, ModelVector, RoundReport, State
from ffalm.algorithms.contract import CHANGE
from ffalm.data.types import Task
from ffalm.engines import contract_checks
from ffalm.engines.common import built_model, frozen_parameters, trained_parameters
from ffalm.engines.inner_products import inner_products, spread
from ffalm.engines.jobs import Job, Model, Round, Snapshot
from ffalm.engines.sampling import participants
from ffalm.fairness import Tally
from ffalm.outcome import Record
from ffalm.privacy import LEDGER, KeyedNoise, Mechanism
from ffalm.run_settings import Training


@dataclass(frozen=True)
class ServerContext:
    """All that a server must know to lead a run: what is agreed and counted, and not one row of data."""

    algorithm: Algorithm
    training: Training
    task: Task
    counts: Tensor  # training rows per (client, label, group)
    seed: int
    trained: Mapping[str, Sequence[str]]  # the model's trained parameters, with the other names of tied ones
    start: Snapshot | None = None
    privacy: Mechanism | None = None
    holds_client_vectors: bool = True  # False for real sites, which keep their own

    @classmethod
    def of(cls, job: Job, model: nn.Module | None = None) -> ServerContext:
        """The context of a job whose rows are all here; `model` is its fresh one, if it was built already."""
        spec, federation = job.spec, job.federation
        model = model or built_model(spec)
        privacy = None
        if job.privacy is not None:
            privacy = Mechanism(job.privacy, KeyedNoise(spec.seed), frozen_parameters(model))
        return cls(
            spec.algorithm,
            spec.training,
            federation.task,
            federation.counts(),
            spec.seed,
            trained_parameters(model),
            job.start,
            privacy,
        )

    def begin(self, fresh: Model) -> Snapshot:
        """Where the run starts: at its snapshot, or at the fresh model."""
        if self.privacy is not None:
            Mechanism.check(self.algorithm)
        if self.start is not None:
            start = self.start
            return Snapshot(
                start.round,
                _placed(start.model, fresh, fresh),
                start.state,
                {name: _placed(vector, self.trained, fresh) for name, vector in start.vectors.items()},
                {name: _placed(vector, self.trained, fresh) for name, vector in start.client_vectors.items()},
            )
        names = self.algorithm.server_vectors
        vectors = self.algorithm.start_vectors(self._vector(fresh)) if names else {}
        contract_checks.check_vectors(self.algorithm, "start_vectors", vectors, "server_vectors", names)
        clients = len(self.counts)
        own = {name: {key: fresh[key].new_zeros(clients, *fresh[key].shape) for key in self.trained}
               for name in self.algorithm.client_vectors if self.holds_client_vectors}  # fmt: skip
        state = self.algorithm.start(self.task, self.counts)
        contract_checks.check_start(self.algorithm, state)
        return Snapshot(0, fresh, state, {name: self._named(vector) for name, vector in vectors.items()}, own)

    def report(
        self,
        round: int,
        taking_part: Sequence[int],
        tally: Tally | None,
        validation: Tally | None,
        values: Tensor | None = None,
        products: Tensor | None = None,
    ) -> RoundReport:
        """The report that the algorithm receives; `tally`, `values` and `products` are of the clients that took part.

        In the report clients that did not take part have zeros.
        """
        took_part = torch.zeros(len(self.counts), dtype=torch.bool)
        took_part[list(taking_part)] = True
        if self.algorithm.measure is Measure.NOTHING or tally is None:
            everyone = None
        else:
            everyone = _spread(tally, taking_part, len(self.counts))
        if values is not None:
            values = spread(values, (0,), taking_part, len(self.counts))
        if products is not None:
            products = spread(products, (1, 3), taking_part, len(self.counts))
        lr = self.training.lr_at(round)
        return RoundReport(round, self.counts, took_part, everyone, self.task, validation, lr, values, products)

    def update(self, now: Snapshot, report: RoundReport, states: Sequence[State] = ()) -> tuple[Tensor, State]:
        """The clients' weights and the next state: from their Tallies, or from the `states` that they stepped to."""
        if self.privacy is not None:
            given = self.privacy.update(self.algorithm, now.state, report, states)
        elif not states:
            given = self.algorithm.update(now.state, report)
        else:
            return self._mean_of_steps(report, states)
        contract_checks.check_update(self.algorithm, given, report.taking_part)
        return given

    def _mean_of_steps(self, report: RoundReport, states: Sequence[State]) -> tuple[Tensor, State]:
        """state = project(sum_i p_i state_i), which is what the Tallies of a `separable` algorithm lead to."""
        shares = report.shares()
        taking_part = shares[report.taking_part].tolist()
        mean = {
            name: torch.stack([share * own[name] for share, own in zip(taking_part, states, strict=True)]).sum(0)
            for name in states[0]
        }
        return shares, self.algorithm.project(mean)

    def advance(
        self, now: Snapshot, report: RoundReport, state: State, mean: Mean, own: Mapping[int, dict[str, Model]]
    ) -> Snapshot:
        """The next snapshot, from the weighted mean of what the clients sent; `own` is what each client keeps."""
        model, vectors = mean.model, now.vectors
        if self.algorithm.overrides("server_step"):
            sent = self._vector(now.model)
            given = self.algorithm.server_step(
                sent,
                self._vector(model),
                {name: self._vector(vector) for name, vector in vectors.items()},
                {name: self._vector(vector) for name, vector in mean.uploads.items()},
                report,
            )
            stepped, after = contract_checks.check_server_step(self.algorithm, given, sent)
            model = {**model, **self._named(stepped)}
            vectors = {name: self._named(vector) for name, vector in after.items()}
        ordered = {name: model[name] for name in now.model}  # messages do not keep the order
        return Snapshot(report.round, self._tied(ordered), state, vectors, _kept(now.client_vectors, own))

    def round(
        self, now: Snapshot, weights: Tensor, scores: Mapping[str, float], seen: TrainingSummary | None, **extra: float
    ) -> Round:
        """A round in plain values, and whether the run must stop after it; `scores` are metrics of held-out rows.

        Under privacy the clients' losses are left out: they carry no noise, so they would reveal something about the
        clients, and so would a run that stops because of one. The epsilon spent so far is recorded instead.
        """
        state = {name: value for name, value in now.state.items() if name != LEDGER}
        seen_values: dict[str, float] = {}
        if self.privacy is not None:
            seen_values = {"epsilon": self.privacy.epsilon(now.state)}
        elif seen is not None:
            seen_values = {"train_loss": seen.loss, "negative_weight_share": seen.negative}
        ended = divergence(self.algorithm, seen_values.get("train_loss", 0.0), now, state)
        return Round(record_of(now.round, scores, state, weights, {**seen_values, **extra}), now, ended)

    def _vector(self, entries: Model) -> ModelVector:
        return ModelVector([entries[name] for name in self.trained])

    def _named(self, vector: ModelVector) -> Model:
        return dict(zip(self.trained, vector.tensors, strict=True))

    def _tied(self, model: Model) -> Model:
        """Tied parameters the same under all their names; a server step or noise moved each name on its own.

        Each name has memory of its own: safetensors, in which messages travel, takes no tensor twice.
        """
        return model | {other: model[name].clone() for name, others in self.trained.items() for other in others}


@dataclass(frozen=True)
class Mean:
    """The weighted mean of what clients sent."""

    model: Model
    uploads: dict[str, Model] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingSummary:
    """How local training went, averaged over the clients that took part."""

    loss: float  # mean over steps of the batch's mean loss
    negative: float  # share of steps that pushed some row's loss up


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back after local training."""

    model: Model
    tally: Tally | None  # None if the algorithm measures nothing, or `state` stands for it
    loss: float | None  # mean over its steps of the batch's mean loss; None if a site withholds it
    negative: float | None  # share of its steps that pushed some row's loss up; likewise
    uploads: dict[str, Model] = field(default_factory=dict)  # the algorithm's, averaged like the model
    own: dict[str, Model] = field(default_factory=dict)  # its client vectors, if the engine keeps them for it
    validation: Tally | None = None  # of the model it was sent, on held-out rows of its own
    state: State | None = None  # after the client's own dual step, from a real site instead of the Tally
    values: Tensor | None = None  # of the algorithm's `objectives`, if it names gradients


class Clients(Protocol):
    """The clients of one run, with their data where training happens."""

    def begin(self) -> Model:
        """The freshly initialised model."""
        ...

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """The round of the chosen clients, from the model and state they are sent, by client number.

        At least one must answer; one that is left out did not take part.
        """
        ...

    def average(self, models: Sequence[Model], weights: Tensor) -> Model:
        """The weighted mean of models."""
        return average(models, weights)

    def validate(self, model: Model) -> Tally | None:
        """The validation part's Tally of a model; None if there is no such part, or not here."""
        return None


def rounds(context: ServerContext, clients: Clients) -> Iterator[Round]:
    """The rounds of one run, from its beginning or its snapshot to its last round or its divergence."""
    training = context.training
    now = context.begin(clients.begin())
    scores = clients.validate(now.model)
    for number in range(now.round + 1, training.rounds + 1):
        began = time.perf_counter()
        chosen = participants(context.seed, number, len(context.counts), training.participation)
        answers = dict(sorted(clients.train(chosen, now).items()))
        updates = list(answers.values())
        validations = [update.validation for update in updates if update.validation is not None]
        held_out = Tally.stack(validations).pooled() if validations else scores
        tallies = [update.tally for update in updates if update.tally is not None]
        values = [update.values for update in updates if update.values is not None]
        report = context.report(
            number,
            list(answers),
            Tally.stack(tallies) if tallies else None,
            held_out,
            torch.stack(values) if values else None,
            _products(context, now, updates),
        )
        weights, state = context.update(now, report, [update.state for update in updates if update.state is not None])
        mean = _mean(context, clients, now, answers, weights, state)
        now = context.advance(now, report, state, mean, {client: update.own for client, update in answers.items()})
        scores = clients.validate(now.model)
        (metrics,) = held_out_metrics([] if scores is None else [scores], context.task) or [{}]
        done = context.round(now, weights, metrics, _summary(updates), seconds=time.perf_counter() - began)
        yield done
        if done.diverged:
            return


def _mean(
    context: ServerContext, clients: Clients, now: Snapshot, answers: Mapping[int, ClientUpdate], weights: Tensor,
    state: State,
) -> Mean:  # fmt: skip
    """The weighted mean of the updates, under privacy with noise."""
    updates = list(answers.values())
    models = [update.model for update in updates]
    if context.privacy is not None:
        return Mean(context.privacy.merge(now.model, models, weights[list(answers)], now.round + 1))
    shares = contract_checks.check_upload_weights(context.algorithm, context.algorithm.weigh_uploads(weights, state))
    uploads = {
        name: average([update.uploads[name] for update in updates], shares[name][list(answers)])
        for name in context.algorithm.uploads
    }
    return Mean(clients.average(models, weights[list(answers)]), uploads)


def _products(context: ServerContext, now: Snapshot, updates: Sequence[ClientUpdate]) -> Tensor | None:
    """The inner products that the algorithm names, (name, client, name, client)."""
    names = context.algorithm.products
    if not names:
        return None

    def number_of(name: str, update: ClientUpdate, key: str) -> Tensor:
        value = update.model[key] - now.model[key] if name == CHANGE else update.uploads[name][key]
        return value.flatten()

    parts = (torch.stack([number_of(name, update, key) for name in names for update in updates])
             for key in context.trained)  # fmt: skip
    return inner_products(parts, len(names))


def _summary(updates: Sequence[ClientUpdate]) -> TrainingSummary | None:
    """The mean over the clients that report their loss; None if none does."""
    known = [(update.loss, update.negative) for update in updates
             if update.loss is not None and update.negative is not None]  # fmt: skip
    return TrainingSummary(*(sum(values) / len(known) for values in zip(*known, strict=True))) if known else None


def own_step(algorithm: Algorithm, sent: Snapshot, tally: Tally | None, rows: int, task: Task) -> State:
    """The state after the dual step that a client takes by its own Tally, of an algorithm that `needs_only_sums`."""
    if algorithm.measure is Measure.NOTHING or tally is None:
        return sent.state
    counts = torch.zeros(1, task.labels, task.groups, dtype=torch.int64)
    counts[0, 0, 0] = rows  # all that a client's own step depends on is how many there are
    report = RoundReport(sent.round + 1, counts, torch.tensor([True]), Tally.stack([tally]), task)
    return algorithm.dual_step(sent.state, report)


def average(models: Sequence[Model], weights: Tensor) -> Model:
    """The weighted mean of the clients' complete states, BatchNorm statistics included, in the order given.

    Sums are kept in float64; counters, which have no mean, take the largest value.
    """
    mean: Model = {}
    for name, like in models[0].items():
        if like.dtype.is_floating_point:
            total = torch.zeros_like(like, dtype=torch.float64)
            for model, weight in zip(models, weights.tolist(), strict=True):
                total.add_(model[name], alpha=weight)  # converted as it is added, so no copy in float64
            mean[name] = total.to(like.dtype)
        else:
            mean[name] = torch.stack([model[name] for model in models]).amax(0)
    return mean


def _placed(entries: Model, names: Iterable[str], like: Model) -> Model:
    """Entries read from a file in the model's own order and on its device."""
    return {name: entries[name].to(like[name].device) for name in names}


def _spread(tally: Tally, chosen: Sequence[int], clients: int) -> Tally:
    """Tallies of the clients that took part, laid out over all clients; zeros for the others."""
    confusion = tally.confusion.new_zeros(clients, *tally.confusion.shape[1:])
    loss = tally.loss.new_zeros(clients, *tally.loss.shape[1:])
    confusion[list(chosen)], loss[list(chosen)] = tally.confusion, tally.loss
    return Tally(confusion, loss)


def _kept(before: dict[str, Model], own: Mapping[int, dict[str, Model]]) -> dict[str, Model]:
    """The clients' vectors with the entries of those that trained replaced."""
    after = {name: {key: value.clone() for key, value in vector.items()} for name, vector in before.items()}
    for client, vectors in own.items():
        for name, vector in vectors.items():
            for key, value in vector.items():
                after[name][key][client] = value
    return after


def held_out_metrics(tallies: Sequence[Tally], task: Task) -> list[dict[str, float]]:
    """The metrics of several held-out Tallies of one task, computed together."""
    if not tallies:
        return []
    return Tally.stack(list(tallies)).excluding(task.excluded).metrics_of_each(task.favourable)


def record_of(round: int, scores: Mapping[str, float], state: State, weights: Tensor, extra: dict[str, Any]) -> Record:
    """A round in plain values: validation metrics, the server's state, the clients' weights, and what else was seen."""
    plain = {name: value.tolist() for name, value in state.items()}
    return {"round": round, **scores, **plain, "weights": weights.tolist(), **extra}


def divergence(algorithm: Algorithm, loss: float, now: Snapshot, state: State) -> str | None:
    """Why a run must stop after this round, in one sentence; None if all its numbers are finite.

    `state` is what may be shown of the snapshot's. A model may stay finite while a server optimizer's vector does not.
    """
    lost = [name for name, value in state.items() if not _finite([value])]
    lost += [name for name, vector in now.vectors.items() if not _finite(vector.values())]
    if math.isfinite(loss) and _finite(now.model.values()) and not lost:
        return None
    what = f"its {lost[0]} is" if lost else "its loss or model is"
    shown = ", ".join(f"{name} = {_shown(state[name])}" for name in state if state[name].numel() <= 8)
    values = f" ({shown})" if shown else ""
    return (
        f"{algorithm.title} diverged in round {now.round}: {what} no longer finite{values}; try {algorithm.remedies}."
    )


def _finite(values: Iterable[Tensor]) -> bool:
    return bool(torch.stack([value.isfinite().all() for value in values]).all())


def _shown(value: Tensor) -> str:
    numbers = [f"{number:.4g}" for number in value.flatten().tolist()]
    return numbers[0] if value.ndim == 0 else f"({', '.join(numbers)})"
