"""The algorithm contract: settings plus pure functions over tensors. An algorithm never knows which engine runs it.

Tensors may carry leading axes (seed, client), so algorithms use masks and never branch on data. What runs where:

    server   start, start_vectors                    once
    client   objective (slopes), drift               every local step
    client   finish                                  after its last local step
    server   update (dual_step, project)             client weights and recorded state, from the clients' Tallies
    server   server_step                             next model and model-sized state, from the weighted mean

All an algorithm does not override is federated averaging with SGD on the mean loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from ffalm.algorithms.compatibility import adapt_old_signatures
from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.errors import require
from ffalm.fairness import Tally, masked_mean
from ffalm.fairness.groups import equal_weights

State = dict[str, Tensor]
"""The server's recorded numbers between rounds (duals, client weights, schedules), float64, by name."""

Prepared = dict[str, Tensor]
"""What an algorithm computes from batches before their losses, by name; entries have the batches' axes in front."""


TrainsOn = Literal["clients", "pooled", "alone"]
"""A federation of clients; one client with everybody's rows; each client by itself."""


class Task(Protocol):
    """The sizes that formulas depend on; `ffalm.data.types.Task` has them."""

    @property
    def labels(self) -> int: ...
    @property
    def groups(self) -> int: ...  # all of them, by which rows and Tallies are numbered
    @property
    def compared(self) -> int: ...  # how many of them, the first ones, constraints are about
    @property
    def favourable(self) -> int: ...


class Measure(Enum):
    """Of which model, on which training rows, a client takes the Tally that it reports."""

    NOTHING = "nothing"
    RECEIVED = "received"  # the model it was sent, on all its rows
    LAST_BATCH = "last batch"  # the last batch as it was trained on
    EPOCH = "epoch"  # all batches as they were trained on
    TRAINED = "trained"  # its own trained model, on all its rows


class Rows(NamedTuple):
    """A batch before the model has seen it; rows are on the last axis, and `mask` leaves padding out."""

    labels: Tensor
    groups: Tensor
    mask: Tensor
    task: Task


class Batch(NamedTuple):
    """A batch after the forward pass: cross-entropy of each row, and logits where the algorithm asks for them."""

    rows: Rows
    losses: Tensor  # (..., row)
    outputs: Tensor | None = None  # (..., row, label); None unless `by_outputs`
    prepared: Prepared | None = None  # what `prepare` returned for these rows, if the engine asked it before

    @property
    def labels(self) -> Tensor:
        """(..., row)"""
        return self.rows.labels

    @property
    def groups(self) -> Tensor:
        """(..., row)"""
        return self.rows.groups

    @property
    def mask(self) -> Tensor:
        """(..., row)"""
        return self.rows.mask

    @property
    def task(self) -> Task:
        """Number of labels and groups, and the favourable label."""
        return self.rows.task

    def favourable_probability(self) -> Tensor:
        """P(favourable label) of each row: from the logits, or for two labels from the losses alone."""
        if self.outputs is not None:
            return self.outputs.softmax(-1)[..., self.task.favourable]
        assert self.task.labels == 2, "more than two labels need `by_outputs`"
        own = (-self.losses).exp()
        return torch.where(self.labels == self.task.favourable, own, 1 - own)


@dataclass(frozen=True)
class Sent:
    """What a client received at the start of a round."""

    state: State  # the entries of the server's state that `broadcasts` names
    model: ModelVector  # the trained parameters of the global model
    vectors: Vectors = field(default_factory=dict)  # the server's vectors that `broadcasts` names


@dataclass(frozen=True)
class RoundReport:
    """What the server knows after local training, one entry a client on the last leading axis."""

    round: int  # 1, 2, ...
    counts: Tensor  # training rows per (client, label, group)
    taking_part: Tensor  # whether a client trained in this round
    tally: Tally | None  # what `measure` asked for; zeros for a client that did not take part
    task: Task
    validation: Tally | None = None  # pooled held-out Tally of the model that was sent; None without held-out rows

    def __post_init__(self) -> None:
        """Metrics of these Tallies leave out the groups that are not compared."""
        excluded = self.task.groups - self.task.compared
        for name in ("tally", "validation"):
            told = getattr(self, name)
            if told is not None and told.excluded != excluded:
                object.__setattr__(self, name, told.excluding(excluded))

    @property
    def sizes(self) -> Tensor:
        """Training rows of each client."""
        return self.counts.sum((-1, -2))

    @property
    def favourable(self) -> int:
        """The label people want."""
        return self.task.favourable

    def shares(self) -> Tensor:
        """p_i: each participating client's share of their rows; sums to 1, 0 for the others."""
        rows = self.sizes.double() * self.taking_part
        return rows / rows.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging; other algorithms override what they change.

    A subclass is a frozen dataclass of settings. Give it a `name` and `@register` it, and every engine runs it.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # how tables call it
    default_preset: ClassVar[str | None] = None  # what its bare name stands for, in Python and on the command line
    remedies: ClassVar[str] = "a smaller lr or clip"  # what to try when a run diverges
    separable: ClassVar[bool] = False  # whether the server needs no more than sums: see `dual_step`
    duals_by_group: ClassVar[bool] = False  # whether its duals are one a group, or one for group 0 and each other
    broadcasts: ClassVar[tuple[str, ...]] = ()  # entries of the state and of `server_vectors` that clients receive
    server_vectors: ClassVar[tuple[str, ...]] = ()  # model-sized, kept by the server; checkpointed, never recorded
    client_vectors: ClassVar[tuple[str, ...]] = ()  # model-sized, kept by each client from round to round; start at 0
    uploads: ClassVar[tuple[str, ...]] = ()  # model-sized, sent with the trained model and averaged like it
    server_settings: ClassVar[tuple[str, ...]] = ()  # settings on which nothing that clients do depends
    trains_on: ClassVar[TrainsOn] = "clients"  # the others are references, not federated methods

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        adapt_old_signatures(cls)

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Named settings, for configuration files and flags."""
        return {}

    @property
    def measure(self) -> Measure:
        """Which Tally of its training rows each client reports to `update`."""
        return Measure.NOTHING

    def start(self, task: Task, counts: Tensor) -> State:
        """The state before round 1, from the clients' row counts of shape (..., client, label, group)."""
        return {}

    def start_vectors(self, model: ModelVector) -> Vectors:
        """The server's vectors before round 1."""
        return {name: model.zeros() for name in self.server_vectors}

    # Local training

    def by_outputs(self, task: Task) -> bool:
        """Whether the objective needs the logits; False where losses are enough, which engines compute faster."""
        return False

    def objective(self, batch: Batch, state: State) -> Tensor:
        """What local training minimises on a batch, one number a client."""
        return masked_mean(batch.losses, batch.mask)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """The part of `slopes` that does not depend on losses, in their `dtype`.

        An engine that knows many batches in advance asks once for all of them, on leading axes.
        """
        return {}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """The objective's derivative by each row's loss, or by each logit where the batch has `outputs`.

        Autograd computes it; override it where a closed form is known, which is faster for small models. Rows that
        the mask leaves out must get 0. Losses and outputs carry no gradient.
        """
        with torch.inference_mode(False), torch.enable_grad():
            if batch.outputs is None:
                free = batch.losses.clone().requires_grad_()
                batch = batch._replace(losses=free)
            else:
                free = batch.outputs.clone().requires_grad_()
                batch = batch._replace(losses=_cross_entropy(free, batch.labels), outputs=free)
            objective = self.objective(batch, state)
            require(
                isinstance(objective, Tensor),
                f"The objective of {self.title} must return a tensor; it returned {type(objective).__name__}.",
            )
            (slopes,) = torch.autograd.grad(objective.sum(), free)
        return slopes

    def drift(self, weights: ModelVector, sent: Sent, own: Vectors) -> ModelVector | None:
        """Added to the gradient after it was clipped: proximal terms, control variates. `own` is `client_vectors`."""
        return None

    def finish(
        self, weights: ModelVector, sent: Sent, own: Vectors, steps: Tensor, lr: float
    ) -> tuple[Vectors, Vectors]:
        """After the client's last step: its new `client_vectors`, and its `uploads`. `steps` is one number a client."""
        return own, {}

    # The server

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """How the server weighs the clients' models, and its state for the next round.

        By size unless overridden. An algorithm that keeps to that overrides `dual_step` and `project` alone.
        """
        return report.shares(), self.project(self.dual_step(state, report))

    def dual_step(self, state: State, report: RoundReport) -> State:
        """The state after the clients' Tallies, or the held-out Tally, moved it.

        An algorithm may call itself `separable` if it does not override `update` and this is the mean, by size, of
        what each client would come to alone. Then each client can take the step by its own Tally and the server needs
        only the sum of the results: real sites do so, and secure aggregation hides each result.
        """
        return state

    def project(self, state: State) -> State:
        """The state within its bounds; done by the server after averaging, since a bound is not linear."""
        return state

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """The next model and the server's vectors, from the model that was sent and the weighted mean of the trained.

        `uploads` are weighted means too. Only trained parameters pass through here; buffers are averaged.
        """
        return mean, vectors

    # Facts about a class that engines plan by

    def trains_like(self, other: Algorithm) -> bool:
        """Whether clients do the same for both, given the same state: the two differ in `server_settings` alone.

        A subclass does not inherit these settings, since it may read them elsewhere.
        """
        own = vars(type(self)).get("server_settings", ())
        shared = [one.name for one in fields(self) if one.name not in own]
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in shared)

    @property
    def needs_only_sums(self) -> bool:
        """Whether the server can do without single Tallies: it needs none, or clients take the dual step themselves."""
        return type(self).update is Algorithm.update and (self.separable or self.measure is Measure.NOTHING)

    @property
    def overrides_drift(self) -> bool:
        """Whether local steps are more than the objective's gradient."""
        return type(self).drift is not Algorithm.drift

    @property
    def overrides_server_step(self) -> bool:
        """Whether the next model is something else than the weighted mean."""
        return type(self).server_step is not Algorithm.server_step

    @property
    def only_averages(self) -> bool:
        """Whether local steps and the server treat the model as nothing but gradients and weighted means."""
        return not (self.overrides_drift or self.overrides_server_step or self.client_vectors or self.uploads)


class PlainTraining(Algorithm):
    """Clients minimise the mean loss, every row counting the same; what is fair about it happens at the server."""

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """1/n for each of the n rows that count."""
        return {"share": equal_weights(rows.mask, dtype)}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """1/n, whatever the losses."""
        return (batch.prepared or self.prepare(batch.rows, batch.losses.dtype))["share"]


def scalar(value: float, counts: Tensor) -> Tensor:
    """A state entry of one number per seed, on the leading axes that `counts` has beyond (client, label, group)."""
    return torch.full(counts.shape[:-3], value, dtype=torch.float64, device=counts.device)


def geometric(start: float, growth: float, steps: int) -> float:
    """start * growth^steps; infinite where it is too large for a float, so that the run counts as diverged."""
    try:
        return start * growth**steps
    except OverflowError:
        return math.inf


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of each row, with any leading axes."""
    flat = outputs.log_softmax(-1).flatten(0, -2)
    return nll_loss(flat, labels.flatten(), reduction="none").view(labels.shape)
