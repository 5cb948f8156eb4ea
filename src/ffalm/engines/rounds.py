"""The round of engines that train one client after the other; how a client trains is theirs to say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ffalm.algorithms import Measure, Report
from ffalm.engines.base import Job, Round, Snapshot
from ffalm.engines.common import divergence, record_of
from ffalm.engines.sampling import participants
from ffalm.fairness import Tally


@dataclass(frozen=True)
class Reply:
    """What a client sends back: its model, its Tally, and what its training looked like."""

    model: dict[str, Tensor]
    tally: Tally
    loss: float  # mean over its steps of the batch's mean loss
    negative: float  # share of its steps in which some row had a negative weight


class Clients(Protocol):
    """The clients of one job, with their data where training happens."""

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        ...

    def train(self, client: int, sent: Snapshot) -> Reply:
        """One client's round, from the model and state it was sent."""
        ...

    def merge(self, replies: Sequence[Reply], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of the replies' models."""
        ...

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model; None where there is no such part."""
        ...


def rounds(job: Job, clients: Clients) -> Iterator[Round]:
    """The rounds of one job, from its beginning or its snapshot to its last round or its divergence."""
    algorithm, training, task = job.algorithm, job.training, job.federation.task
    counts = job.federation.counts()
    fresh = clients.begin()
    now = job.start or Snapshot(0, fresh, algorithm.start(counts))
    for number in range(now.round + 1, training.rounds + 1):
        began = time.perf_counter()
        chosen = participants(job.seed, number, len(counts), training.participation)
        replies = [clients.train(client, now) for client in chosen]
        weights, state = algorithm.update(now.state, _report(job, number, chosen, replies, counts))
        now = Snapshot(number, clients.merge(replies, weights[chosen]), state)
        loss = sum(reply.loss for reply in replies) / len(replies)
        scores = clients.validate(now.model)
        seen = {
            "train_loss": loss,
            "negative_weight_share": sum(reply.negative for reply in replies) / len(replies),
            "seconds": time.perf_counter() - began,
        }
        ended = divergence(algorithm, number, loss, state, now.model)
        yield Round(record_of(number, scores, task.favourable, state, weights, seen), now, ended)
        if ended:
            return


def _report(job: Job, round: int, chosen: list[int], replies: list[Reply], counts: Tensor) -> Report:
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
