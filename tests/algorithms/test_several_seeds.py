"""What the server computes for several seeds at once is, seed by seed, what it computes for one.

Three groups and a fourth that is not compared, clients that lack groups, held-out rows of which one seed lacks a group,
settings that no default has, and two rounds, so that the state of the first is used in the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ffalm
from ffalm.algorithms import Algorithm, RoundReport
from ffalm.data.types import Task
from ffalm.fairness import Tally

CLIENTS, SEEDS, GROUPS, LABELS = 4, 3, 4, ("no", "yes", "later")

METHODS: list[tuple[Algorithm, int]] = [
    (ffalm.FFALM(dual_step_cap=0.02, dual_decay=0.1, dual_bound=0.3), 3),
    (ffalm.FFALM(dual_proportional=0.5, sufficient_decrease=0.9, penalty_growth=1.5), 3),
    (ffalm.FFALM(gap="pooled", normalised_gap=True, sufficient_decrease=0.5, penalty_growth=1.5), 3),
    (ffalm.FFALM(gap="held_out"), 3),
    (ffalm.FPFL(tolerance=0.05), 3),
    (ffalm.FairALM(labels="favourable"), 3),
    (ffalm.FedFB(normalised_step=True), 2),
    (ffalm.FedFB(metric="eo"), 2),
    (ffalm.FedGFT("odds,loss"), 3),
    (ffalm.FedMinMax(step=0.4), 3),
    (ffalm.AFL(), 3),
    (ffalm.QFFL(q=2.0), 3),
    *(
        (cls("odds,accuracy,loss", tolerance=0.03, measured=measured), 3)
        for cls in (ffalm.Lagrangian, ffalm.Reductions)
        for measured in ("held_out", "train")
    ),
]


def tally_of(counts: torch.Tensor, draws: np.random.Generator) -> Tally:
    """Random predictions and losses of so many rows by (label, group)."""
    labels = len(counts)
    shares = draws.dirichlet(np.ones(labels), counts.shape)
    cells = zip(counts.flatten().tolist(), shares.reshape(-1, labels), strict=True)
    predicted = np.array([draws.multinomial(rows, chances) for rows, chances in cells])
    confusion = torch.from_numpy(predicted.T.reshape(labels, *counts.shape))
    return Tally(confusion, counts * torch.from_numpy(draws.uniform(0.1, 2, counts.shape)), 1)


def reports(seed: int, labels: int) -> list[RoundReport]:
    """Two rounds of one seed; in the second a client sits out, and seed 1 holds out no row of group 1."""
    draws = np.random.default_rng(seed)
    task = Task("people", label_names=LABELS[:labels], group_names=("a", "b", "c", "unknown"), excluded=1)
    counts = torch.from_numpy(draws.integers(1, 20, (CLIENTS, labels, GROUPS)))
    counts[1, :, 0] = counts[2, :, 1] = 0
    held_out = torch.from_numpy(draws.integers(1, 30, (labels, GROUPS)))
    held_out[:, 1] *= seed != 1
    return [
        RoundReport(
            round,
            counts,
            torch.tensor([round == 1 or seed != client for client in range(CLIENTS)]),
            Tally.stack([tally_of(own, draws) for own in counts]),
            task,
            tally_of(held_out, draws),
        )
        for round in (1, 2)
    ]


@pytest.mark.parametrize(("algorithm", "labels"), METHODS, ids=lambda one: getattr(one, "title", ""))
def test_each_seed_has_the_numbers_that_it_has_alone(algorithm: Algorithm, labels: int) -> None:
    alone = [reports(seed, labels) for seed in range(SEEDS)]
    counts = torch.stack([one[0].counts for one in alone])
    state = algorithm.start(alone[0][0].task, counts)
    states: list[Any] = [algorithm.start(one[0].task, one[0].counts) for one in alone]
    for place in range(2):
        told = [one[place] for one in alone]
        tallies, held_out = [one.tally for one in told if one.tally], [one.validation for one in told if one.validation]
        part = torch.stack([one.taking_part for one in told])
        together = RoundReport(place + 1, counts, part, Tally.stack(tallies), told[0].task, Tally.stack(held_out))
        weights, state = algorithm.update(state, together)
        for seed, one in enumerate(told):
            own, states[seed] = algorithm.update(states[seed], one)
            torch.testing.assert_close(weights[seed], own, rtol=1e-12, atol=1e-12)
            for name, value in states[seed].items():
                torch.testing.assert_close(state[name][seed], value, rtol=1e-12, atol=1e-12, msg=name)
