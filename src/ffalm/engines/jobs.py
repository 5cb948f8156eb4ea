"""What an engine is given and what it gives back. An engine never names an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, State
from ffalm.data.types import Task
from ffalm.engines.optimizers import OPTIMIZERS, SGD, Adam
from ffalm.errors import require, unknown
from ffalm.federation import Federation
from ffalm.outcome import Record
from ffalm.privacy import Privacy

ModelFactory = Callable[[], nn.Module]
Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Training:
    """How clients train and for how long; the defaults are the paper's.

    `batch_size=None` takes all of a client's rows at once; `local_steps` counts batches instead of `local_epochs`;
    `clip` bounds the norm of each step's gradient. The learning rate follows the global round:
    lr * lr_decay^floor((t - 1) / lr_step). Optimizer state (momentum, Adam's moments) starts anew each round.
    """

    rounds: int = field(default=70, metadata={"help": "Communication rounds."})
    local_epochs: int = field(default=1, metadata={"help": "Local epochs per round."})
    local_steps: int | None = field(default=None, metadata={"help": "Local steps per round, instead of local epochs."})
    batch_size: int | None = field(default=128, metadata={"help": "Batch size; none for all rows of a client at once."})
    lr: float = field(default=0.05, metadata={"help": "Learning rate."})
    lr_step: int = field(default=50, metadata={"help": "Rounds between decays of the learning rate."})
    lr_decay: float = field(default=0.5, metadata={"help": "Factor of each decay of the learning rate."})
    clip: float | None = field(default=1.0, metadata={"help": "Largest gradient norm of a step; none for no clipping."})
    participation: float = field(default=1.0, metadata={"help": "Fraction of clients that train in each round."})
    optimizer: Literal["sgd", "adam"] = field(
        default="sgd", metadata={"help": "Optimizer of the clients: sgd or adam."}
    )
    momentum: float = field(default=0.0, metadata={"help": "Momentum of the clients' SGD."})
    weight_decay: float = field(default=0.0, metadata={"help": "Weight decay of the clients' optimizer."})

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "local_steps", "batch_size", "lr_step"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"The training setting {name!r} must be at least 1; got {value}.")
        for name in ("lr", "lr_decay", "clip"):
            value = getattr(self, name)
            lowest_ok = value is None or (math.isfinite(value) and (value > 0 or (name == "lr" and value == 0)))
            bound = "from 0 up" if name == "lr" else "above 0"
            require(lowest_ok, f"The training setting {name!r} must be a number {bound}; got {value}.")
        require(
            0 < self.participation <= 1,
            f"The training setting 'participation' is a share above 0 and at most 1; got {self.participation}.",
        )
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", str(self.optimizer), OPTIMIZERS)
        require(
            0 <= self.momentum < 1,
            f"The training setting 'momentum' must be from 0 to below 1; got {self.momentum}.",
        )
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            f"The training setting 'momentum' is for the optimizer sgd; {self.optimizer} has its own.",
        )
        require(
            math.isfinite(self.weight_decay) and self.weight_decay >= 0,
            f"The training setting 'weight_decay' must be 0 or more; got {self.weight_decay}.",
        )

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.lr * self.lr_decay ** ((round - 1) // self.lr_step)

    def local_optimizer(self) -> SGD | Adam:
        """The optimizer of local training."""
        if self.optimizer == "adam":
            return Adam(self.weight_decay)
        return SGD(self.momentum, self.weight_decay)


Model = dict[str, Tensor]
"""A model's state, or a model-sized vector over its trained parameters, by name."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds; with the seed, enough to go on as if it had not stopped.

    Only `state` is recorded in the history. `vectors` are the server's, `client_vectors` those that each client keeps,
    with a leading client axis; both by name and then by trained parameter. In real federations the sites keep theirs.
    """

    round: int
    model: Model
    state: State
    vectors: dict[str, Model] = field(default_factory=dict)
    client_vectors: dict[str, Model] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientSpec:
    """All that a client must know to train and score, apart from its rows."""

    algorithm: Algorithm
    model: ModelFactory
    training: Training
    task: Task
    seed: int
    device: torch.device
    precision: Precision = "fp32"  # "bf16" computes forward passes in bfloat16 where torch deems it safe
    channels_last: bool | None = None  # memory layout of images, a matter of speed alone; None: on a CPU


@dataclass(frozen=True)
class Job:
    """One run: one algorithm on one federation with one seed, from the beginning or from a snapshot."""

    spec: ClientSpec
    federation: Federation
    start: Snapshot | None = None
    compiled: bool = False  # compile whole batches of a graphed model: most of a minute first, then a fifth faster
    processes: int = 1  # that share the device's memory, this one included
    privacy: Privacy | None = None  # noise on all that the run gives out, so that no client can be told from it

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        federation: Federation,
        model: ModelFactory,
        training: Training,
        seed: int,
        device: torch.device,
        start: Snapshot | None = None,
        precision: Precision = "fp32",
        channels_last: bool | None = None,
        compiled: bool = False,
        processes: int = 1,
        privacy: Privacy | None = None,
    ) -> Job:
        """The job of clients whose rows are all here: the federation says what the task is."""
        spec = ClientSpec(algorithm, model, training, federation.task, seed, device, precision, channels_last)
        return cls(spec, federation, start, compiled, processes, privacy)


@dataclass(frozen=True)
class Round:
    """What one round of one job gave; a job that diverged ends with the round that says so."""

    record: Record
    snapshot: Snapshot
    diverged: str | None = None


class Engine(Protocol):
    """A way of computing rounds. All engines see the same batches and give the same numbers, up to rounding."""

    name: ClassVar[str]
    together: ClassVar[bool]  # whether jobs given in one call are computed together, not one after the other
    spreads: ClassVar[bool]  # whether one process of it uses the whole machine, or a cluster, by itself

    def refusal(self, job: Job) -> str | None:
        """Why this engine cannot run a job, in one sentence; None where it can. Known before anything is computed."""
        ...

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Run the jobs to their last rounds, giving each round with the number of its job as it is done."""
        ...
