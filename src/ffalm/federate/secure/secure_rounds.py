"""A round of a server that sees nothing but sums."""

from __future__ import annotations

import time

from ffalm.algorithms import Measure
from ffalm.engines import Round
from ffalm.engines.sampling import participants
from ffalm.engines.server import Mean, ServerContext, TrainingSummary
from ffalm.federate.secure.secure_clients import SecureClients
from ffalm.privacy import LEDGER


def secure_round(context: ServerContext, clients: SecureClients) -> Round:
    """The next round of a run: that of `ffalm.engines.server.rounds`, except for rounding to whole units.

    Each site takes the dual step with its own Tally; the mean of the results equals the algorithm's own step, and
    `project` follows as usual. An algorithm that needs no training Tallies takes its step here. Under privacy the
    noise is already in the sums, and only its cost is noted.
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
    measured = algorithm.measure is not Measure.NOTHING
    if not measured:
        own = {name: value for name, value in now.state.items() if name != LEDGER}
        weights, state = algorithm.update(own, report)
    model = summed.model
    if context.privacy is not None:
        state = {**state, LEDGER: context.privacy.charged(now.state, report, measured)}
        model = {name: value.clamp(min=0) if name.endswith("running_var") else value for name, value in model.items()}
    now = context.advance(now, report, state, Mean(model, summed.uploads), {})
    seen = TrainingSummary(summed.loss, summed.negative)
    return context.round(now, weights, {}, seen, rounding=summed.error, seconds=time.perf_counter() - began)
