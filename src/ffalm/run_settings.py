"""The settings of runs and studies as plain dataclasses. Flags are made from them, so nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from ffalm.errors import require, require_known
from ffalm.settings import build, check_ranges, flag, setting, typed
from ffalm.targets.target import Repair, Scope

Precision = Literal["fp32", "tf32", "bf16"]
Optimizer = Literal["sgd", "adam"]
Keep = Literal["last", "best"]

MOST_SEEDS = 10_000

_RUNNING = "How to run it"
_TARGET = "Fairness target"
_LARGEST_EXPONENT = 300


@typed
@dataclass(frozen=True)
class Training:
    """How clients train and for how long; the defaults are the paper's.

    `batch_size=None` takes all of a client's rows at once; `local_steps` counts batches instead of `local_epochs`;
    `clip` bounds the norm of each step's gradient. The learning rate follows the global round:
    lr * lr_decay^floor((t - 1) / lr_step). Optimizer state (momentum, Adam's moments) starts anew each round.
    """

    rounds: int = setting(70, "Communication rounds.", least=1, most=10**6)
    local_epochs: int = setting(1, "Local epochs per round.", least=1, most=10**5)
    local_steps: int | None = setting(None, "Local steps per round, instead of local epochs.", least=1, most=10**7)
    batch_size: int | None = setting(128, "Batch size; none for all rows of a client at once.", least=1)
    lr: float = setting(0.05, "Learning rate.", least=0, most=1e38)
    lr_step: int = setting(50, "Rounds between decays of the learning rate.", least=1)
    lr_decay: float = setting(0.5, "Factor of each decay of the learning rate.", above=0, most=1e38)
    clip: float | None = setting(1.0, "Largest gradient norm of a step; none for no clipping.", above=0, most=1e38)
    participation: float = setting(1.0, "Fraction of clients that train in each round.", above=0, most=1)
    optimizer: Optimizer = field(default="sgd", metadata={"help": "Optimizer of the clients: sgd or adam."})
    momentum: float = setting(0.0, "Momentum of the clients' SGD.", least=0, below=1)
    weight_decay: float = setting(0.0, "Weight decay of the clients' optimizer.", least=0, most=1e38)

    def __post_init__(self) -> None:
        check_ranges(self, "training")
        require(
            self.local_steps is None or self.local_epochs == Training.local_epochs,
            "The training settings 'local_epochs' and 'local_steps' exclude each other: leave one of them out.",
        )
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            f"The training setting 'momentum' is for the optimizer sgd; {self.optimizer} has its own.",
        )
        decays = (self.rounds - 1) // self.lr_step
        require(
            self.lr == 0
            or self.lr_decay <= 1
            or decays * math.log10(self.lr_decay) + math.log10(self.lr) < _LARGEST_EXPONENT,
            f"The learning rate would grow beyond all numbers: lr_decay {self.lr_decay} is applied {decays} times.",
        )

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.lr * self.lr_decay ** ((round - 1) // self.lr_step)


@typed
@dataclass(frozen=True)
class Privacy:
    """The settings of the mechanisms.

    Noise is counted in units of a client's largest contribution, so that every mechanism with the multiplier z costs
    the same: replacing a client moves its result by at most 2/z standard deviations. More noise, less epsilon.
    """

    # of the model: standard deviation over clip * largest client weight; 0 protects nothing
    noise: float = field(
        metadata={"help": "Noise multiplier; giving it turns differential privacy on.", "least": 0, "most": 1e38}
    )
    # over all floating numbers of the model
    clip: float = field(
        default=1.0, metadata={"help": "Largest norm of a client's model update.", "flag": "privacy_clip", "above": 0}
    )
    tally_noise: float | None = field(
        default=None,
        metadata={
            "about": "Noise multiplier of what clients report for the duals; none: as `noise`.",
            "least": 0,
            "most": 1e38,
        },
    )
    state_clip: float | None = field(
        default=None,
        metadata={
            "about": "Largest norm of a client's own step of the duals, if these steps are averaged; none: 0.1, for "
            "FedGFT 1.",
            "above": 0,
        },
    )
    loss_bound: float = field(
        default=2.0,
        metadata={
            "about": "Where single Tallies are needed: mean loss of a (label, group) cell counts up to this.",
            "above": 0,
        },
    )
    # well below 1 / number of clients
    delta: float = setting(1e-5, "Delta for which epsilon is reported.", above=0, below=1)

    def __post_init__(self) -> None:
        check_ranges(self, "privacy")

    @property
    def of_tallies(self) -> float:
        """The noise multiplier of what clients report for the duals."""
        return self.noise if self.tally_noise is None else self.tally_noise

    def of_steps(self, usual: float) -> float:
        """The bound of a client's own step of the duals, by an algorithm whose steps are `usual` in size."""
        return usual if self.state_clip is None else self.state_clip


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the runs of a study share, whatever their algorithm, data and seed."""

    model: Any = "mlp"  # a name, an `Architecture` or a function that makes the module
    training: Training = field(default_factory=Training)
    privacy: Privacy | None = None
    keep: Keep = field(
        default="last", metadata=flag("Model to score: of the last round, or the best on validation rows.", "Training")
    )
    engine: str | Any = field(  # a name or an `Engine`
        default="auto", metadata=flag("Engine: auto, loop, stacked, graphed, lockstep or flower.", _RUNNING)
    )
    device: str = field(
        default="auto",
        metadata=flag(
            "Device: auto (a GPU where there is one, except for small models of tables), cpu or cuda.", _RUNNING
        ),
    )
    precision: Precision = field(
        default="fp32", metadata=flag("Precision: fp32, or for speed on a GPU tf32 or bf16.", _RUNNING)
    )
    channels_last: bool | None = field(
        default=None, metadata={"about": "Memory layout of images, a matter of speed alone; none: on a CPU."}
    )
    compiled: bool = field(
        default=False, metadata={"about": "Compile whole batches of a model that the engine graphed runs."}
    )

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> Self:
        """Checked settings from keywords, those of `Training` among them."""
        of_training = {one.name for one in fields(Training)}
        known = {one.name for one in fields(cls)} - {"training"} | of_training
        require_known("setting", known, *keywords)
        training = build(Training, {name: keywords[name] for name in keywords if name in of_training}, "training")
        others = {name: keywords[name] for name in keywords if name not in of_training}
        return build(cls, {**others, "training": training}, "run")

    def keywords(self) -> dict[str, Any]:
        """The keywords of `simulate` that stand for these settings."""
        own = {one.name: getattr(self, one.name) for one in fields(RunSettings) if one.name != "training"}
        return {**own, **{one.name: getattr(self.training, one.name) for one in fields(Training)}}


@dataclass(frozen=True, kw_only=True)
class StudySettings(RunSettings):
    """What a study adds to the settings of its runs, apart from its algorithms and its data."""

    seeds: tuple[int, ...] = field(
        default=(0,), metadata={"about": "Seeds: each draws the partition, the model and the batches anew."}
    )
    fresh_data: bool = field(
        default=False, metadata=flag("Generate or split the data differently for each seed.", "What to run")
    )
    checkpoint_every: int = field(default=1, metadata=flag("Rounds between checkpoints.", _RUNNING, least=1))
    target: str | None = field(
        default=None,
        metadata=flag('Fairness target, such as "dpd <= 0.05" or "eod <= 0.05, impact_ratio >= 0.8".', _TARGET),
    )
    repair: Repair = field(
        default="groups",
        metadata=flag(
            "Thresholds that the answer may use: none, single, groups (one per group) or randomised; or blind: single, "
            "and a rule that needs no group at prediction.",
            _TARGET,
        ),
    )
    scope: Scope = field(
        default="federation",
        metadata=flag(
            "Where the target is to hold: federation, sites (each gets thresholds of its own) or both.",
            _TARGET,
            "target_scope",
        ),
    )
    confidence: float | None = field(
        default=None,
        metadata=flag(
            "Confidence with which held-out gaps must be within the target; by default 0.8, less where rows are few.",
            _TARGET,
        ),
    )
    workers: int | None = field(
        default=None, metadata=flag("Worker processes; by default one per core or GPU.", _RUNNING, least=1, most=1024)
    )
