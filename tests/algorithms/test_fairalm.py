"""FairALM: hand-worked numbers, FedAvg as its special case, and the central algorithm as that of one client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import TASK, batch_of, report_of, task_of
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import State
from ffalm.engines import Training
from ffalm.engines.sampling import batches
from ffalm.errors import UserError
from ffalm.fairness import Tally

LOSSES = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])


def state(dual: float, step: float) -> State:
    return {"dual": torch.tensor(dual).double(), "step": torch.tensor(step).double()}


def after(algorithm: ffalm.FairALM, before: State, labels: Tensor | None = None) -> State:
    labels = torch.zeros(4, dtype=torch.int64) if labels is None else labels
    tally = Tally.stack([Tally.of(labels, LOSSES, labels, GROUPS, (2, 2))])
    return algorithm.update(before, report_of(1, torch.tensor([4]), torch.tensor([True]), tally))[1]


def test_the_worked_objective_and_dual() -> None:
    """L 0.55, mu 0.3 and 0.8, dual 0.2, step 0.5: J = 0.55 - 0.2 * 0.5 + 0.5 * 1.1 = 1, dual' = 0.2 - 0.25."""
    algorithm = ffalm.FairALM(step=0.5)
    assert float(algorithm.objective(batch_of(LOSSES, GROUPS), state(0.2, 0.5))) == pytest.approx(1.0)
    found = algorithm.slopes(batch_of(LOSSES, GROUPS), state(0.2, 0.5))
    assert found.tolist() == pytest.approx([0.25 + 0.35, 0.25 + 0.35, 0.25 + 0.15, 0.25 + 0.15])
    moved = after(algorithm, state(0.2, 0.5))
    assert float(moved["dual"]) == pytest.approx(-0.05)
    assert float(moved["step"]) == pytest.approx(0.5 / 1.01)


def test_favourable_rows_alone_are_compared_if_asked() -> None:
    """Favourable rows have losses 0.4 and 1.0: J = 0.55 + 0.2 * -0.6 + 0.5 * 1.4, dual' = 0.2 - 0.5 * 0.6."""
    algorithm, labels = ffalm.FairALM(step=0.5, labels="favourable"), torch.tensor([0, 1, 0, 1])
    batch = batch_of(LOSSES, GROUPS, labels)
    assert float(algorithm.objective(batch, state(0.2, 0.5))) == pytest.approx(1.13)
    assert algorithm.slopes(batch, state(0.2, 0.5)).tolist() == pytest.approx([0.25, 0.95, 0.25, 0.55])
    assert float(after(algorithm, state(0.2, 0.5), labels)["dual"]) == pytest.approx(-0.1)


def test_a_batch_that_lacks_a_group_is_trained_on_plainly() -> None:
    found = ffalm.FairALM().slopes(batch_of(LOSSES, torch.zeros_like(GROUPS)), state(0.2, 0.5))
    assert found.tolist() == [0.25] * 4


def test_three_groups_have_a_term_for_each_pair_with_group_0() -> None:
    """mu = (0.2, 0.5, 1.0): J = 0.55 + 0.1 * -0.3 - 0.2 * -0.8 + 0.5 * (0.7 + 1.2)."""
    batch = batch_of(LOSSES, torch.tensor([0, 1, 1, 2]), task=task_of(groups=3))
    before = {"dual": torch.tensor([0.1, -0.2]).double(), "step": torch.tensor(0.5).double()}
    assert float(ffalm.FairALM().objective(batch, before)) == pytest.approx(1.63)
    assert ffalm.FairALM().start(task_of(groups=3), torch.ones(5, 4, 2, 3))["dual"].shape == (5, 2)


def test_step_0_is_plain_training() -> None:
    algorithm = ffalm.FairALM(step=0.0)
    start = algorithm.start(TASK, torch.ones(1, 2, 2))
    assert algorithm.slopes(batch_of(LOSSES, GROUPS), start).tolist() == [0.25] * 4
    assert float(after(algorithm, start)["dual"]) == 0


def test_swapped_groups_negate_the_dual() -> None:
    swapped = ffalm.FairALM().slopes(batch_of(LOSSES, 1 - GROUPS), state(-0.2, 0.5))
    assert torch.equal(swapped, ffalm.FairALM().slopes(batch_of(LOSSES, GROUPS), state(0.2, 0.5)))


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(UserError, match="'labels' of FairALM"):
        ffalm.FairALM(labels="some")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'dual_data' of FairALM"):
        ffalm.FairALM(dual_data="epoch_mean")  # type: ignore[arg-type]


def test_one_client_with_one_step_a_round_is_the_central_algorithm() -> None:
    """Per batch w <- w - tau grad[e + (dual + eta) mu_0 - (dual - eta) mu_1], dual <- dual + eta (mu_0 - mu_1)."""
    draws, rounds, lr, eta = np.random.default_rng(0), 12, 0.2, 0.3
    group, y = draws.integers(0, 2, 40), draws.integers(0, 2, 40)
    x = draws.normal(size=(40, 3)) + y[:, None] - 0.5 * group[:, None]
    start, dual, seed = draws.normal(size=(2, 3)), 0.0, 3
    w = start.copy()
    for round in range(1, rounds + 1):
        (taken,) = (one.numpy() for one in batches(seed, round, 0, 40, Training(batch_size=16, local_steps=1)))
        logits = x[taken] @ w.T
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses = -np.log(p[np.arange(16), y[taken]])
        members = [group[taken] == s for s in (0, 1)]
        by_loss = 1 / 16 + (dual + eta) * members[0] / members[0].sum() - (dual - eta) * members[1] / members[1].sum()
        p[np.arange(16), y[taken]] -= 1
        w = w - lr * (p * by_loss[:, None]).T @ x[taken]
        dual += eta * (losses[members[0]].mean() - losses[members[1]].mean())

    def model() -> nn.Module:
        made = nn.Linear(3, 2, bias=False).double()
        made.weight.data = torch.tensor(start)
        return made

    run: dict[str, Any] = {
        "rounds": rounds,
        "batch_size": 16,
        "local_steps": 1,
        "lr": lr,
        "clip": None,
        "lr_step": 99,
    }
    algorithm = ffalm.FairALM(step=eta, step_growth=1.0, dual_data="last_batch")
    found = ffalm.simulate(algorithm, ffalm.Federation.from_arrays([(x, y, group)]), model=model, seed=seed, **run)
    np.testing.assert_allclose(found.state_dict["weight"].numpy(), w, rtol=0, atol=1e-12)
    assert float(found.state["dual"]) == pytest.approx(dual, abs=1e-12)
    assert abs(dual) > 0.01
