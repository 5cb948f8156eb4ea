"""The algorithm contract: settings plus pure functions over tensors. An algorithm never knows which engine runs it.

Tensors may carry leading axes (seed, client), so algorithms use masks and never branch on data. What runs where:

    server   start, start_vectors                    once
    server   recounted                               before a round, where sites of a real federation have come or gone
    client   own_state                               before its first local step
    client   objective (slopes), drift               every local step
    client   finish                                  after its last local step
    client   objectives                              instead of training, if `gradients` names any
    server   update (dual_step, project)             client weights and recorded state, from the clients' Tallies
    server   weigh_uploads, server_step              next model and model-sized state, from weighted means

Whatever an algorithm does not override is federated averaging with SGD on the mean loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from ffalm.algorithms.vectors import ModelVector, Vectors
from ffalm.errors import UserError, require
from ffalm.fairness import Tally, masked_mean
from ffalm.fairness.groups import equal_weights
from ffalm.settings import check_ranges

State = dict[str, Tensor]
"""The server's recorded numbers between rounds (duals, client weights, schedules), float64, by name."""

CHANGE = "change"
"""The trained model minus the one that was sent, as a name in `Algorithm.products`."""

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
    """Which Tally a client reports: of which model, on which of its training rows."""

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
    """A batch after the forward pass: cross-entropy of each row, and its logits if `by_outputs` is true."""

    rows: Rows
    losses: Tensor  # (..., row)
    outputs: Tensor | None = None  # (..., row, label); None unless `by_outputs`
    prepared: Prepared | None = None  # what `prepare` returned for these rows, if the engine called it

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
        require(
            self.task.labels == 2,
            f"The probability of one of {self.task.labels} labels needs the model's outputs: let `by_outputs` of the "
            "algorithm return True.",
        )
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
    """What the server knows after local training, one entry per client on the last leading axis."""

    round: int  # 1, 2, ...
    counts: Tensor  # training rows per (client, label, group)
    taking_part: Tensor  # whether a client trained in this round
    tally: Tally | None  # the Tally that `measure` names; zeros for a client that did not take part
    task: Task
    validation: Tally | None = None  # pooled held-out Tally of the model that was sent; None without held-out rows
    lr: float = 0.0  # the clients' learning rate in this round
    values: Tensor | None = None  # (client, objective): each client's own `objectives`, if `gradients` names any
    products: Tensor | None = None  # (name, client, name, client): inner products of the vectors in `products`

    def __post_init__(self) -> None:
        """Leave the groups that are not compared out of these Tallies' metrics."""
        excluded = self.task.groups - self.task.compared
        for name in ("tally", "validation"):
            tally = getattr(self, name)
            if tally is not None and tally.excluded != excluded:
                object.__setattr__(self, name, tally.excluding(excluded))

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
    title: ClassVar[str]  # its name in tables
    paper: ClassVar[str] = ""  # authors, title, venue and year
    limits: ClassVar[str] = ""  # what it does not do, or needs of data and settings, in sentences
    most_groups: ClassVar[int | None] = None  # groups that its formula compares; None: any number
    default_preset: ClassVar[str | None] = None  # what its bare name stands for, in Python and on the command line
    remedies: ClassVar[str] = "a smaller lr or clip"  # what to try when a run diverges
    duals_by_group: ClassVar[bool] = False  # whether its duals are one per group, or one for group 0 and each other
    step_norm: ClassVar[float] = 0.1  # usual size of a client's own step of the duals: its bound under privacy
    broadcasts: ClassVar[tuple[str, ...]] = ()  # entries of the state and of `server_vectors` that clients receive
    server_vectors: ClassVar[tuple[str, ...]] = ()  # model-sized, kept by the server; checkpointed, never recorded
    client_vectors: ClassVar[tuple[str, ...]] = ()  # model-sized, kept by each client from round to round; start at 0
    uploads: ClassVar[tuple[str, ...]] = ()  # model-sized, sent with the trained model and averaged like it
    gradients: ClassVar[tuple[str, ...]] = ()  # those uploads that are gradients of `objectives`: no local training
    products: ClassVar[tuple[str, ...]] = ()  # uploads, or `CHANGE`, whose inner products `update` receives
    server_settings: ClassVar[tuple[str, ...]] = ()  # settings on which nothing that clients do depends
    trains_on: ClassVar[TrainsOn] = "clients"  # the others are references, not federated methods

    def __post_init__(self) -> None:
        """Numbers must lie within the range that their `setting` gives."""
        check_ranges(self)

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

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """The state after the set of known clients has changed; `counts` are those of the clients known now.

        In a real federation sites come late or are removed: `new` marks the clients whose rows were not known until
        now, and one that is gone has no rows. A state that depends on counts overrides this.
        """
        return state

    def start_vectors(self, model: ModelVector) -> Vectors:
        """The server's vectors before round 1."""
        return {name: model.zeros() for name in self.server_vectors}

    # Local training

    def own_state(self, task: Task, counts: Tensor) -> State:
        """What a client adds to the state that it received, from its own rows per (label, group); it stays there."""
        return {}

    def by_outputs(self, task: Task) -> bool:
        """Whether the objective needs the logits; False if losses are enough, which engines compute faster."""
        return False

    def objective(self, batch: Batch, state: State) -> Tensor:
        """What local training minimises on a batch, one number per client."""
        return masked_mean(batch.losses, batch.mask)

    def prepare(self, rows: Rows, dtype: torch.dtype) -> Prepared:
        """The part of `slopes` that does not depend on losses, in their `dtype`.

        An engine that knows many batches in advance calls this once for all of them, on a leading axis.
        """
        return {}

    def slopes(self, batch: Batch, state: State) -> Tensor:
        """The objective's derivative by each row's loss, or by each logit if the batch has `outputs`.

        Autograd computes it; override it if a closed form is known, which is faster for small models. Rows that
        the mask leaves out must get 0. Losses and outputs carry no gradient.
        """

        def objective(own: Batch) -> Tensor:
            value = self.objective(own, state)
            require(
                isinstance(value, Tensor),
                f"The objective of {self.title} must return a tensor; it returned {type(value).__name__}.",
            )
            require(
                value.shape == own.losses.shape[:-1],
                f"The objective of {self.title} must return one number per client, a sum or mean over the last axis of "
                f"the losses, whose shape is {tuple(own.losses.shape)}; it returned {tuple(value.shape)}.",
            )
            return value.unsqueeze(-1)

        (slopes,) = _derivatives(objective, batch)[1]
        return slopes

    def objectives(self, batch: Batch, state: State) -> Tensor:
        """(..., objective): the functions whose gradients clients upload, in the order of `gradients`.

        A client that uploads gradients does not train: the batch is all of its rows, and the model is the one that it
        received. The server receives the values of the objectives too.
        """
        raise UserError(f"{self.title} names gradients, so it must define objectives.")

    def objective_slopes(self, batch: Batch, state: State) -> tuple[Tensor, list[Tensor]]:
        """The values of `objectives`, and the derivative of each as `slopes` gives that of the objective."""
        return _derivatives(lambda own: self.objectives(own, state), batch)

    def drift(self, weights: ModelVector, sent: Sent, own: Vectors) -> ModelVector | None:
        """Added to the gradient after it was clipped: proximal terms, control variates. `own` is `client_vectors`."""
        return None

    def finish(
        self, weights: ModelVector, sent: Sent, own: Vectors, steps: Tensor, lr: float
    ) -> tuple[Vectors, Vectors]:
        """After the client's last step: its new `client_vectors` and `uploads`; `steps` has one number per client."""
        return own, {}

    # The server

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """How the server weighs the clients' models, and its state for the next round.

        Weights of the clients that took part sum to 1. By size unless overridden: an algorithm that keeps to that
        overrides `dual_step` and `project` alone.
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

    def weigh_uploads(self, weights: Tensor, state: State) -> dict[str, Tensor]:
        """The weight of each client's vector in the sum that stands for an upload, by the upload's name.

        `weights` are those of the models, which uploads take too unless overridden; `state` is the next one, so that
        `update` can choose these weights from the report.
        """
        return dict.fromkeys(self.uploads, weights)

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        """The next model and the server's vectors, from the model that was sent and the weighted mean of the trained.

        `uploads` are weighted means too, or sums by `weigh_uploads`. Only trained parameters pass through here;
        buffers are averaged.
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
        """Whether sums over clients are enough for the server: it measures nothing, or clients take the dual step."""
        by_size = not self.overrides("update", "weigh_uploads")
        return by_size and not self.products and (self.separable or self.measure is Measure.NOTHING)

    @property
    def needs_held_out(self) -> bool:
        """Whether the dual step reads the held-out Tally, `report.validation`."""
        return False

    @property
    def separable(self) -> bool:
        """Whether the next state follows from sums over clients: see `dual_step`; it may depend on settings."""
        return False

    @property
    def tells_gaps(self) -> bool:
        """Whether a client's dual step reveals only gaps between groups' mean losses; it may depend on settings."""
        return False

    @property
    def tells_gaps_of_cells(self) -> bool:
        """Whether a client's dual step reveals only gaps between mean losses of single (label, group) cells."""
        return False

    def overrides(self, *hooks: Literal["own_state", "drift", "server_step", "update", "weigh_uploads"]) -> bool:
        """Whether the class overrides any of these hooks."""
        return any(getattr(type(self), hook) is not getattr(Algorithm, hook) for hook in hooks)

    @property
    def only_averages(self) -> bool:
        """Whether local steps and the server treat the model as nothing but gradients and weighted means."""
        return not (self.overrides("drift", "server_step") or self.client_vectors or self.uploads)


class PlainTraining(Algorithm):
    """Clients minimise the plain mean loss; whatever promotes fairness happens at the server."""

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
    """start * growth^steps; infinite if it is too large for a float, so that the run counts as diverged."""
    try:
        return start * growth**steps
    except OverflowError:
        return math.inf


def _derivatives(function: Callable[[Batch], Tensor], batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """A function's values of a batch, (..., value), and the derivative of each by the rows' logits, else losses."""
    with torch.inference_mode(False), torch.enable_grad():
        if batch.outputs is None:
            free = batch.losses.clone().requires_grad_()
            batch = batch._replace(losses=free)
        else:
            free = batch.outputs.clone().requires_grad_()
            batch = batch._replace(losses=_cross_entropy(free, batch.labels), outputs=free)
        values = function(batch)
        require(
            values.requires_grad, "An objective must be computed from the losses or outputs of its batch, by torch."
        )
        sums = values.reshape(-1, values.shape[-1]).sum(0).unbind()
        slopes = [torch.autograd.grad(one, free, retain_graph=True)[0] for one in sums]
    return values.detach(), slopes


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of each row, with any leading axes."""
    flat = outputs.log_softmax(-1).flatten(0, -2)
    return nll_loss(flat, labels.flatten(), reduction="none").view(labels.shape)
