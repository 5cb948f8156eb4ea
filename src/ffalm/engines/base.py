"""What an engine is given and what it gives back. An engine never names an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, State
from ffalm.errors import require
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
    lr * lr_decay^floor((t - 1) / lr_step).
    """

    rounds: int = 70
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int | None = 128
    lr: float = 0.05
    lr_step: int = 50
    lr_decay: float = 0.5
    clip: float | None = 1.0
    participation: float = 1.0

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

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.lr * self.lr_decay ** ((round - 1) // self.lr_step)


@dataclass(frozen=True)
class Snapshot:
    """All that a run is between two rounds; with the seed, enough to go on as if nothing had happened."""

    round: int
    model: dict[str, Tensor]
    state: State


class Local(Protocol):
    """What a client's own training and scoring depend on besides its rows.

    A job has all of it, and so has a site that knows nobody else's rows.
    """

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def model(self) -> ModelFactory: ...
    @property
    def training(self) -> Training: ...
    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def channels_last(self) -> bool | None: ...


@dataclass(frozen=True)
class Job:
    """One run: one algorithm on one federation with one seed, from the beginning or from a snapshot."""

    algorithm: Algorithm
    federation: Federation
    model: ModelFactory
    training: Training
    seed: int
    device: torch.device
    start: Snapshot | None = None
    precision: Precision = "fp32"  # "bf16" computes forward passes in bfloat16 where torch deems it safe
    channels_last: bool | None = None  # memory layout of images, a matter of speed alone; None: on a CPU
    compiled: bool = False  # compile whole batches of a graphed model: most of a minute first, then a fifth faster
    processes: int = 1  # that share the device's memory, this one included
    privacy: Privacy | None = None  # noise on all that the run gives out, so that no client can be told from it


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

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Run the jobs to their last rounds, giving each round with the number of its job as it is done."""
        ...
