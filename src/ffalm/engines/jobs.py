"""What an engine is given and what it gives back. An engine never names an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, State
from ffalm.data.types import Task
from ffalm.federation import Federation
from ffalm.outcome import Record
from ffalm.privacy import Privacy
from ffalm.run_settings import Precision, Training

ModelFactory = Callable[[], nn.Module]
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
    precision: Precision = "fp32"  # "bf16" computes forward passes in bfloat16 where torch considers it safe
    channels_last: bool | None = None  # memory layout of images, a matter of speed alone; None: on a CPU

    def __post_init__(self) -> None:
        """A client that uploads gradients takes all its rows at once and makes no step."""
        if self.algorithm.gradients:
            once = replace(self.training, batch_size=None, local_epochs=1, local_steps=None)
            object.__setattr__(self, "training", once)


@dataclass(frozen=True)
class Job:
    """One run: one algorithm on one federation with one seed, from the beginning or from a snapshot."""

    spec: ClientSpec
    federation: Federation
    start: Snapshot | None = None
    compiled: bool = False  # compile whole batches of a graphed model: most of a minute first, then a fifth faster
    processes: int = 1  # that share the device's memory, this one included
    privacy: Privacy | None = None  # noise on all that the run publishes, so that it reveals little of any client

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


class Together(Enum):
    """Which jobs an engine computes faster in one call than one after the other."""

    NONE = "none"
    CLIENTS = "clients"  # whose clients do the same: seeds of one algorithm
    SEED = "seed"  # whose clients see the same batches: algorithms on one federation


class Engine(Protocol):
    """A way of computing rounds. All engines see the same batches and give the same numbers, up to rounding."""

    name: ClassVar[str]
    together: ClassVar[Together]
    spreads: ClassVar[bool]  # whether one process of it uses the whole machine, or a cluster, by itself

    @classmethod
    def lacks(cls, algorithm: Algorithm) -> str | None:
        """Why this engine cannot run an algorithm, whatever the job, in one sentence; None if it can."""
        return None

    def refusal(self, job: Job) -> str | None:
        """Why this engine cannot run a job, in one sentence; None if it can. Known before anything is computed."""
        return None

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Run the jobs to their last rounds, giving each round with the number of its job as it is done."""
        ...
