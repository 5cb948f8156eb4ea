"""The settings of runs and studies as plain dataclasses. Flags are made from them, so nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from ffalm.errors import require, require_known
from ffalm.settings import build, flag, require_above_zero, typed
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

    rounds: int = field(default=70, metadata={"help": "Communication rounds.", "most": 10**6})
    local_epochs: int = field(default=1, metadata={"help": "Local epochs per round.", "most": 10**5})
    local_steps: int | None = field(
        default=None, metadata={"help": "Local steps per round, instead of local epochs.", "most": 10**7}
    )
    batch_size: int | None = field(default=128, metadata={"help": "Batch size; none for all rows of a client at once."})
    lr: float = field(default=0.05, metadata={"help": "Learning rate.", "most": 1e38})
    lr_step: int = field(default=50, metadata={"help": "Rounds between decays of the learning rate."})
    lr_decay: float = field(default=0.5, metadata={"help": "Factor of each decay of the learning rate.", "most": 1e38})
    clip: float | None = field(
        default=1.0, metadata={"help": "Largest gradient norm of a step; none for no clipping.", "most": 1e38}
    )
    participation: float = field(default=1.0, metadata={"help": "Fraction of clients that train in each round."})
    optimizer: Optimizer = field(default="sgd", metadata={"help": "Optimizer of the clients: sgd or adam."})
    momentum: float = field(default=0.0, metadata={"help": "Momentum of the clients' SGD."})
    weight_decay: float = field(default=0.0, metadata={"help": "Weight decay of the clients' optimizer.", "most": 1e38})

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
    noise: float = field(metadata={"help": "Noise multiplier; giving it turns differential privacy on.", "most": 1e38})
    # over all floating numbers of the model
    clip: float = field(
        default=1.0, metadata={"help": "Largest norm of a client's model update.", "flag": "privacy_clip"}
    )
    tally_noise: float | None = field(
        default=None,
        metadata={"most": 1e38, "about": "Noise multiplier of what clients report for the duals; none: as `noise`."},
    )
    state_clip: float = field(
        default=0.1,
        metadata={"about": "Largest norm of a client's own step of the duals, where these steps are averaged."},
    )
    loss_bound: float = field(
        default=2.0,
        metadata={"about": "Where single Tallies are needed: mean loss of a (label, group) cell counts up to this."},
    )
    # well below 1 / number of clients
    delta: float = field(default=1e-5, metadata={"help": "Delta for which epsilon is reported."})

    def __post_init__(self) -> None:
        for name in ("noise", "tally_noise"):
            value = getattr(self, name)
            require(
                value is None or (math.isfinite(value) and value >= 0),
                f"The privacy setting {name!r} must be 0 or more; got {value}.",
            )
        require_above_zero(self, "The privacy setting {!r}", "clip", "state_clip", "loss_bound")
        require(0 < self.delta < 1, f"The privacy setting 'delta' must lie between 0 and 1; got {self.delta}.")

    @property
    def of_tallies(self) -> float:
        """The noise multiplier of what clients report for the duals."""
        return self.noise if self.tally_noise is None else self.tally_noise


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
        default="auto", metadata=flag("Engine: auto, loop, stacked, graphed or flower.", _RUNNING)
    )
    device: str = field(default="auto", metadata=flag("Device: auto, cpu or cuda.", _RUNNING))
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
        default=False, metadata=flag("Draw the data, or its split, anew for each seed.", "What to run")
    )
    checkpoint_every: int = field(default=1, metadata=flag("Rounds between checkpoints.", _RUNNING))
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
        default=None, metadata=flag("Worker processes; by default one per core or GPU.", _RUNNING, most=1024)
    )
