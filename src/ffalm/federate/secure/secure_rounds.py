"""A round as a server leads it that sees nothing but sums."""

from __future__ import annotations

import time

import torch

from ffalm.engines import Round, Snapshot
from ffalm.engines.common import divergence, record_of
from ffalm.engines.sampling import participants
from ffalm.engines.server import ServerContext
from ffalm.federate.secure.secure_clients import SecureClients


def secure_round(terms: ServerContext, clients: SecureClients) -> Round:
    """The next round of a run, as `ffalm.engines.server` would give it but for the rounding to whole units.

    The sites move the state each by its own Tally; the mean of the results is what the algorithm would have come to,
    and it settles it as ever.
    """
    began = time.perf_counter()
    algorithm, training = terms.algorithm, terms.training
    now = terms.start or Snapshot(0, clients.begin(), algorithm.start(terms.counts))
    number, count = now.round + 1, len(terms.counts)
    chosen, after = (participants(terms.seed, at, count, training.participation) for at in (number, number + 1))
    summed = clients.round(chosen, now, None if number == training.rounds else after)
    state = algorithm.settled(summed.state)
    now = Snapshot(number, summed.model, state)
    rows = terms.counts.sum((-1, -2)).double()
    inside = torch.tensor([place in clients.summed for place in range(count)])
    seen = {
        "train_loss": summed.loss,
        "negative_weight_share": summed.negative,
        "rounding": summed.error,
        "seconds": time.perf_counter() - began,
    }
    weights = rows * inside / (rows * inside).sum()
    ended = divergence(algorithm, number, summed.loss, state, now.model)
    return Round(record_of(number, None, terms.task.favourable, state, weights, seen), now, ended)
