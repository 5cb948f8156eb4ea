"""The round as a server leads it, whoever the clients are: modules in this process or sites far away."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, Report
from ffalm.data.types import Task
from ffalm.engines.base import Job, Round, Snapshot, Training
from ffalm.engines.common import built_model, divergence, frozen_parameters, record_of
from ffalm.engines.sampling import participants
from ffalm.fairness import Tally
from ffalm.privacy import BOOK, KeyedNoise, Mechanism


@dataclass(frozen=True)
class Terms:
    """All that a server must know to lead a run: what is agreed and counted, and not one row of data."""

    algorithm: Algorithm
    training: Training
    task: Task
    counts: Tensor  # training rows per (client, label, group)
    seed: int
    start: Snapshot | None = None
    privacy: Mechanism | None = None

    @classmethod
    def of(cls, job: Job) -> Terms:
        """The terms of a job whose rows are all here."""
        federation = job.federation
        privacy = None
        if job.privacy is not None:
            privacy = Mechanism(job.privacy, KeyedNoise(job.seed), frozen_parameters(built_model(job)))
        return cls(job.algorithm, job.training, federation.task, federation.counts(), job.seed, job.start, privacy)


@dataclass(frozen=True)
class Reply:
    """What a client sends back: its model, its Tally, and what its training looked like."""

    model: dict[str, Tensor]
    tally: Tally
    loss: float  # mean over its steps of the batch's mean loss
    negative: float  # share of its steps in which some row had a negative weight


class Clients(Protocol):
    """The clients of one run, with their data where training happens."""

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        ...

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, Reply]:
        """The round of the chosen clients, from the model and state they are sent, by client number.

        At least one must answer; one that is left out did not take part.
        """
        ...

    def merge(self, replies: Sequence[Reply], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of the replies' models."""
        ...

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model; None where there is no such part."""
        ...


def rounds(terms: Terms, clients: Clients) -> Iterator[Round]:
    """The rounds of one run, from its beginning or its snapshot to its last round or its divergence."""
    algorithm, training = terms.algorithm, terms.training
    if terms.privacy is not None:
        Mechanism.check(algorithm)
    fresh = clients.begin()
    now = terms.start or Snapshot(0, fresh, algorithm.start(terms.counts))
    for number in range(now.round + 1, training.rounds + 1):
        began = time.perf_counter()
        chosen = participants(terms.seed, number, len(terms.counts), training.participation)
        answers = clients.train(chosen, now)
        weights, now = _next(terms, clients, now, answers)
        scores = clients.validate(now.model)
        seen = {**_told(terms, answers, now), "seconds": time.perf_counter() - began}
        state = {name: value for name, value in now.state.items() if name != BOOK}
        ended = divergence(algorithm, number, seen.get("train_loss", 0.0), state, now.model)
        yield Round(record_of(number, scores, terms.task.favourable, state, weights, seen), now, ended)
        if ended:
            return


def _next(terms: Terms, clients: Clients, now: Snapshot, answers: dict[int, Reply]) -> tuple[Tensor, Snapshot]:
    """The clients' weights, and where their answers take the run."""
    number, answered, privacy = now.round + 1, sorted(answers), terms.privacy
    replies = [answers[client] for client in answered]
    report = _report(terms, number, answers)
    if privacy is None:
        weights, state = terms.algorithm.update(now.state, report)
        return weights, Snapshot(number, clients.merge(replies, weights[answered]), state)
    weights, state = privacy.update(terms.algorithm, now.state, report)
    model = privacy.merge(now.model, [reply.model for reply in replies], weights[answered], number)
    return weights, Snapshot(number, model, state)


def _told(terms: Terms, answers: dict[int, Reply], now: Snapshot) -> dict[str, float]:
    """What a round showed of its clients' training; under privacy nothing but what it has cost so far.

    Losses without noise would tell of the clients, and so would a run that stops because of one.
    """
    if terms.privacy is not None:
        return {"epsilon": terms.privacy.epsilon(now.state)}
    replies = [answers[client] for client in sorted(answers)]
    return {
        "train_loss": sum(reply.loss for reply in replies) / len(replies),
        "negative_weight_share": sum(reply.negative for reply in replies) / len(replies),
    }


def _report(terms: Terms, round: int, answers: dict[int, Reply]) -> Report:
    """The clients' answers, laid out one entry a client of the whole federation."""
    task, everyone = terms.task, range(len(terms.counts))
    tally = None
    if terms.algorithm.measure is not Measure.NOTHING:
        nothing = Tally.zeros((task.labels, task.groups))
        tally = Tally.stack([answers[client].tally if client in answers else nothing for client in everyone])
    taking_part = torch.tensor([client in answers for client in everyone])
    return Report(round, terms.counts.sum((-1, -2)), taking_part, tally, task.favourable)
