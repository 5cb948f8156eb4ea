"""What an algorithm says about a step in closed form is the derivative of its objective."""

from __future__ import annotations

import pytest
import torch
from tests.contract import TASK, batch_of
from tests.variants import variants
from torch import Tensor

from ffalm.algorithms import Algorithm, State

#: Entries of the state by which methods do more than move weight between groups: prices of scores, weights of rows,
#: and FairALM's step, which adds weight to both groups.
ADDS_WEIGHT = {"prices", "row_weights", "step"}


def started(algorithm: Algorithm, counts: Tensor) -> State:
    """A state away from its start, with what a client adds to it."""
    own = algorithm.own_state(TASK, counts.sum(-3))
    return {name: value + 0.3 for name, value in {**algorithm.start(TASK, counts), **own}.items()}


@pytest.mark.parametrize("algorithm", list(variants()), ids=str)
@pytest.mark.parametrize("case", ["both groups", "one group", "masked rows", "a group behind the mask"])
def test_row_weights_are_the_objectives_derivative(algorithm: Algorithm, case: str) -> None:
    draws = torch.Generator().manual_seed(0)
    losses = torch.rand(3, 8, generator=draws, dtype=torch.float64)
    groups = torch.randint(0, 2, (3, 8), generator=draws)
    mask = torch.ones(3, 8, dtype=torch.bool)
    if case == "one group":
        groups[1] = 1
    if case == "masked rows":
        mask[:, 5:] = False
    if case == "a group behind the mask":
        groups[2] = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        mask[2, 5:] = False
    labels = torch.randint(0, 2, (3, 8), generator=draws)
    state = started(algorithm, torch.full((1, 4, 2, 2), 5))
    free = losses.clone().requires_grad_()
    objective = algorithm.objective(batch_of(free, groups, labels, mask), state)
    (expected,) = torch.autograd.grad(objective.sum(), free)
    found = algorithm.slopes(batch_of(losses, groups, labels, mask), state)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if not ADDS_WEIGHT & set(algorithm.broadcasts):
        torch.testing.assert_close((found * mask).sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", list(variants()), ids=str)
def test_what_is_prepared_for_many_batches_at_once_changes_no_weight(algorithm: Algorithm) -> None:
    draws = torch.Generator().manual_seed(1)
    losses = torch.rand(5, 2, 8, generator=draws)
    groups, labels = (torch.randint(0, 2, (5, 2, 8), generator=draws) for _ in range(2))
    groups[1], mask = 1, torch.rand(5, 2, 8, generator=draws) < 0.8
    state = {name: value.float() for name, value in started(algorithm, torch.full((2, 4, 2, 2), 5)).items()}
    together = algorithm.prepare(batch_of(losses, groups, labels, mask).rows, losses.dtype)
    for number in range(5):
        batch = batch_of(losses[number], groups[number], labels[number], mask[number])
        alone = algorithm.slopes(batch, state)
        prepared = {name: value[number] for name, value in together.items()}
        assert torch.equal(algorithm.slopes(batch._replace(prepared=prepared), state), alone)
        assert alone.dtype == losses.dtype
        assert bool((alone[~mask[number]] == 0).all())
