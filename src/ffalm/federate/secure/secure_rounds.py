"""A round as a server leads it that sees nothing but sums."""

from __future__ import annotations

import time

from ffalm.algorithms import Measure
from ffalm.engines import Round
from ffalm.engines.sampling import participants
from ffalm.engines.server import Mean, ServerContext, TrainingSummary
from ffalm.federate.secure.secure_clients import SecureClients


def secure_round(context: ServerContext, clients: SecureClients) -> Round:
    """The next round of a run, as `ffalm.engines.server.rounds` would give it but for the rounding to whole units.

    Each site takes the dual step by its own Tally; the mean of the results is what the algorithm would have come to,
    and `project` follows as ever. An algorithm that needs no training Tallies takes its step here.
    """
    began = time.perf_counter()
    algorithm, training = context.algorithm, context.training
    now = context.begin(clients.begin())
    number, count = now.round + 1, len(context.counts)
    chosen, after = (participants(context.seed, at, count, training.participation) for at in (number, number + 1))
    uploads = dict.fromkeys(algorithm.uploads, tuple(context.trained))
    summed = clients.round(chosen, now, uploads, None if number == training.rounds else after)
    report = context.report(number, clients.summed, None, summed.validation)
    weights, state = report.shares(), algorithm.project(summed.state)
    if algorithm.measure is Measure.NOTHING:
        weights, state = algorithm.update(now.state, report)
    now = context.advance(now, report, state, Mean(summed.model, summed.uploads), {})
    seen = TrainingSummary(summed.loss, summed.negative)
    return context.round(now, weights, None, seen, rounding=summed.error, seconds=time.perf_counter() - began)
