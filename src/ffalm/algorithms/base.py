"""What an algorithm is: its settings and three pure functions. It never knows which engine runs it.

Tensors may carry leading axes (seed, client), so there are masks here and never Python branches on data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import Tensor

from ffalm.fairness import Tally, masked_mean
from ffalm.fairness.groups import equal_weights

State = dict[str, Tensor]
"""The server's own numbers between rounds (duals, client weights, schedules), float64, by name."""

Prepared = dict[str, Tensor]
"""What an algorithm knows of batches before their losses, by name; every entry has the batches' axes in front."""


class Measure(Enum):
    """Of which model, on which rows, a client takes the Tally that it reports."""

    NOTHING = "nothing"
    RECEIVED = "received"  # the model it was sent, on all its rows
    LAST_BATCH = "last batch"  # the last batch as it was trained on
    EPOCH = "epoch"  # all batches as they were trained on
    TRAINED = "trained"  # its own trained model, on all its rows


@dataclass(frozen=True)
class Report:
    """What the server knows after a round of local training, one entry a client on the last leading axis."""

    round: int  # 1, 2, ...
    sizes: Tensor  # training rows of each client
    taking_part: Tensor  # whether it trained in this round
    tally: Tally | None  # what `measure` asked for; zeros for a client that did not take part
    favourable: int = 1  # the label people want

    def shares(self) -> Tensor:
        """p_i: each participating client's share of their rows; sums to 1, 0 for the others."""
        rows = self.sizes.double() * self.taking_part
        return rows / rows.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging; fair algorithms override what they change.

    A subclass is a frozen dataclass of settings. Give it a `name` and `@register` it, and every engine runs it.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # how tables call it
    broadcasts: ClassVar[tuple[str, ...]] = ()  # entries of the state that clients need for their objective
    remedies: ClassVar[str] = "a smaller lr or clip"  # what to try when a run diverges
    separable: ClassVar[bool] = False  # whether the server needs no more than sums: see `moved`
    duals_by_group: ClassVar[bool] = False  # whether `duals` of its state are one a group, so that charts can name them

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Named settings, for configuration files and flags."""
        return {}

    @property
    def measure(self) -> Measure:
        """Which Tally `update` needs."""
        return Measure.NOTHING

    def start(self, counts: Tensor) -> State:
        """The state before round 1, from the clients' row counts of shape (..., client, label, group)."""
        return {}

    def objective(self, losses: Tensor, groups: Tensor, labels: Tensor, mask: Tensor, state: State) -> Tensor:
        """What local SGD minimises on a batch, one number a client; rows lie on the last axis.

        The model comes in only through the per-row losses, so the gradient is a weighted sum of per-row gradients.
        """
        return masked_mean(losses, mask)

    def prepare(self, groups: Tensor, labels: Tensor, mask: Tensor, dtype: torch.dtype) -> Prepared:
        """What of `row_weights` the losses have no part in, in their `dtype`; empty unless an algorithm says so.

        An engine that knows many batches beforehand asks once for all of them, on leading axes, and then hands each
        batch its own part: for small models that is a good part of a step.
        """
        return {}

    def row_weights(
        self, losses: Tensor, groups: Tensor, labels: Tensor, mask: Tensor, state: State,
        prepared: Prepared | None = None,
    ) -> Tensor:  # fmt: skip
        """The objective's derivative by each row's loss, 0 where the mask leaves a row out: all that engines need.

        Autograd finds it; an algorithm that knows it in closed form may say so here, which spares small models a good
        part of each step. `losses` carries no gradient; `prepared` is what `prepare` said of the batch, if asked.
        """
        with torch.inference_mode(False), torch.enable_grad():
            free = losses.clone().requires_grad_()
            (weights,) = torch.autograd.grad(self.objective(free, groups, labels, mask, state).sum(), free)
        return weights

    def update(self, state: State, report: Report) -> tuple[Tensor, State]:
        """How the server weighs the clients' models, and its state for the next round.

        Here by size alone. An algorithm that keeps to that says in `moved` and `settled` what becomes of the state.
        """
        return report.shares(), self.settled(self.moved(state, report))

    def moved(self, state: State, report: Report) -> State:
        """Where the clients' Tallies move the state.

        An algorithm may call itself `separable` if it does not override `update` and this is the mean, by size, of
        what each client would come to alone. Then a client can move the state by its own Tally and the server needs
        only the sum of the results, so that secure aggregation may hide every single one from it.
        """
        return state

    def settled(self, state: State) -> State:
        """The state kept within its bounds, which the server sees to after averaging: a bound is not linear."""
        return state


class PlainTraining(Algorithm):
    """Clients minimise the mean loss, every row counting the same; what is fair about it happens at the server."""

    def prepare(self, groups: Tensor, labels: Tensor, mask: Tensor, dtype: torch.dtype) -> Prepared:
        """1/n for each of the n rows that count."""
        return {"share": equal_weights(mask, dtype)}

    def row_weights(
        self, losses: Tensor, groups: Tensor, labels: Tensor, mask: Tensor, state: State,
        prepared: Prepared | None = None,
    ) -> Tensor:  # fmt: skip
        """What was prepared: the losses have no part in it."""
        return (prepared or self.prepare(groups, labels, mask, losses.dtype))["share"]


def scalar(value: float, counts: Tensor) -> Tensor:
    """A state entry of one number per seed, on the leading axes that `counts` has beyond (client, label, group)."""
    return torch.full(counts.shape[:-3], value, dtype=torch.float64, device=counts.device)


def geometric(start: float, growth: float, steps: int) -> float:
    """start * growth^steps; infinite where it is too large for a float, so that the run counts as diverged."""
    try:
        return start * growth**steps
    except OverflowError:
        return math.inf
