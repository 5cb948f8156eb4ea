"""The server's state under privacy, where it is a mean: each client's own step of it, bounded, with noise on the mean.

This is what the model's update goes through, applied to duals. It needs far less noise than hiding every single Tally:
many clients hide one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, RoundReport, State
from ffalm.algorithms.checks import tensors
from ffalm.fairness import Tally
from ffalm.privacy.changes import noisy_mean, size_of

_ODD = 1e3  # the loss of a made-up row: large, so that no tolerance hides it


def averaged_step(
    algorithm: Algorithm,
    state: State,
    report: RoundReport,
    own: Sequence[State],
    clip: float,
    multiplier: float,
    normal: Callable[[int], Tensor],
) -> State:
    """Where the clients move the state of an algorithm that is `separable`, before it is projected.

    `own` is where each client that took part would move it alone. A client's step is the difference between that and
    where a Tally without any rows moves the state. Entries that no Tally moves, such as a schedule, get no noise and
    nothing from the clients.
    """
    still, open_to_clients = open_entries(algorithm, state, report)
    before = {name: still[name] for name in open_to_clients}
    after = [{name: one[name] for name in open_to_clients} for one in own]
    weights = report.shares()[report.taking_part].tolist()
    return {**still, **noisy_mean(before, after, weights, clip, multiplier, normal(size_of(before)))}


def open_entries(algorithm: Algorithm, state: State, report: RoundReport) -> tuple[State, list[str]]:
    """Where a Tally without any rows moves the state, and the entries that clients' Tallies move from there."""
    nobody = _alone(report, 0, Tally.zeros((report.task.labels, report.task.groups)))
    still = tensors(algorithm, "dual_step", algorithm.dual_step(state, nobody))
    return still, _moved_by_rows(algorithm, state, report, still)


def own_steps(algorithm: Algorithm, state: State, report: RoundReport) -> list[State]:
    """Where each client that took part would move the state by its Tally alone."""
    assert report.tally is not None
    return [
        algorithm.dual_step(state, _alone(report, client, report.tally[client]))
        for client, part in enumerate(report.taking_part.tolist())
        if part
    ]


def _alone(report: RoundReport, client: int, tally: Tally) -> RoundReport:
    """A report of one client only."""
    counts = report.counts[client : client + 1]
    if not bool(counts.any()):  # a share of no rows is undefined
        counts = torch.ones_like(counts)
    return replace(report, counts=counts, taking_part=torch.tensor([True]), tally=Tally.stack([tally]))


def _moved_by_rows(algorithm: Algorithm, state: State, report: RoundReport, still: State) -> list[str]:
    """The entries of the state that made-up Tallies move: found without a look at anybody's rows."""
    ends = [
        algorithm.dual_step(state, _alone(report, 0, tally))
        for tally in _made_up(report.task.labels, report.task.groups)
    ]
    return [name for name in still if any(not torch.equal(end[name], still[name]) for end in ends)]


def _made_up(labels: int, groups: int) -> Iterator[Tally]:
    """Tallies in each of which one (label, group) cell stands out, by its loss and by its predictions."""
    right = torch.eye(labels, dtype=torch.int64).unsqueeze(-1).repeat(1, 1, groups)
    for prediction in range(labels):
        for label in range(labels):
            for group in range(groups):
                confusion, loss = right.clone(), torch.zeros(labels, groups, dtype=torch.float64)
                confusion[:, label, group] = 0
                confusion[prediction, label, group] = 1
                loss[label, group] = _ODD
                yield Tally(confusion, loss)
