"""FedAvg, and the contract that every algorithm inherits from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.contract import batch_of, report_of, task_of
from torch import Tensor

import ffalm
from ffalm.algorithms import Batch, Measure, State, algorithm_class, register
from ffalm.errors import UserError


def test_the_objective_is_the_mean_loss() -> None:
    losses, groups = torch.tensor([0.2, 0.4, 0.6, 1.0], requires_grad=True), torch.tensor([0, 0, 1, 1])
    mask = torch.ones(4, dtype=torch.bool)
    objective = ffalm.FedAvg().objective(batch_of(losses, groups, groups, mask), {})
    (weights,) = torch.autograd.grad(objective, losses)
    assert float(objective.detach()) == pytest.approx(0.55)
    assert weights.tolist() == [0.25] * 4


def test_weights_are_the_shares_of_the_rows_of_those_who_take_part() -> None:
    told = report_of(1, torch.tensor([10, 30, 60]), torch.tensor([True, True, True]), None)
    weights, state = ffalm.FedAvg().update({}, told)
    assert weights.tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert state == {}
    fewer = report_of(1, torch.tensor([10, 30, 60]), torch.tensor([True, True, False]), None)
    assert ffalm.FedAvg().update({}, fewer)[0].tolist() == [0.25, 0.75, 0.0]


def test_equal_sizes_give_the_plain_mean() -> None:
    told = report_of(1, torch.tensor([7, 7, 7, 7]), torch.ones(4, dtype=torch.bool), None)
    assert ffalm.FedAvg().update({}, told)[0].tolist() == [0.25] * 4


def test_it_asks_nothing_of_the_clients() -> None:
    assert ffalm.FedAvg().measure is Measure.NOTHING
    assert ffalm.FedAvg().start(task_of(groups=5), torch.ones(2, 2, 5, dtype=torch.int64)) == {}


def test_the_four_algorithms_are_registered_under_their_names() -> None:
    from ffalm.algorithms import algorithms

    found = algorithms()
    assert {"fedavg", "ffalm", "fairfed", "fpfl"} <= set(found)
    assert found["ffalm"] is ffalm.FFALM
    found.clear()
    assert algorithm_class("fedavg") is ffalm.FedAvg


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'fairfed'"):
        algorithm_class("fairfad")


def test_a_name_cannot_be_taken_twice_and_neither_name_nor_title_be_missing() -> None:
    @dataclass(frozen=True)
    class Other(ffalm.Algorithm):
        name: ClassVar[str] = "fedavg"
        title: ClassVar[str] = "Other"

    with pytest.raises(UserError, match="already belongs"):
        register(Other)

    @dataclass(frozen=True)
    class Nameless(ffalm.Algorithm):
        pass

    with pytest.raises(UserError, match="needs a `name`"):
        register(Nameless)

    @dataclass(frozen=True)
    class Untitled(ffalm.Algorithm):
        name: ClassVar[str] = "untitled"

    with pytest.raises(UserError, match="Untitled needs a `title`, its name in tables"):
        register(Untitled)


def test_a_users_own_algorithm_runs_by_name_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of a few lines: rows of group 1 count double."""
    from ffalm.algorithms import registry

    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))

    @register
    @dataclass(frozen=True)
    class Doubled(ffalm.Algorithm):
        name: ClassVar[str] = "doubled"
        title: ClassVar[str] = "Doubled"

        def objective(self, batch: Batch, state: State) -> Tensor:
            return (batch.losses * (1 + batch.groups) * batch.mask).sum(-1) / batch.mask.sum(-1)

    draws = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draws)
    owned = ffalm.Federation.from_arrays([(x, torch.arange(40) % 2, torch.arange(40) // 20)])
    one, other = (
        ffalm.simulate(name, owned, rounds=1, clip=None, engine="loop", device="cpu") for name in ("doubled", "fedavg")
    )
    assert not torch.equal(one.state_dict["0.weight"], other.state_dict["0.weight"])
