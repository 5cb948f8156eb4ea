"""`ffalm.simulate`: train one algorithm over a federation in this process and score the result.

Studies compute their runs by the same `RunSettings`, `Run` and `compute`, and keep them on disk as well.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, State, algorithm_class
from ffalm.data.types import Examples
from ffalm.engines import Engine, Job, ModelFactory, Round, Snapshot, choose
from ffalm.engines.common import autocast, built_model, checked_model, evaluate, score_histogram
from ffalm.errors import UserError, require, shown
from ffalm.fairness import ScoreHistogram, Tally, undefined
from ffalm.federation import Federation
from ffalm.frame_html import frame_html
from ffalm.hardware import deterministic, threads_for
from ffalm.hardware import device as device_of
from ffalm.memory import require_room
from ffalm.model_selection import ModelSelection, check_selection
from ffalm.models import ARCHITECTURES, Architecture, architecture, from_scratch
from ffalm.outcome import HEADLINE, Record
from ffalm.progress import ProgressLine
from ffalm.run_settings import Keep, Optimizer, Precision, Privacy, RunSettings, Training
from ffalm.settings import with_keywords

if TYPE_CHECKING:
    from pandas import DataFrame

Model = str | Architecture | ModelFactory

_COPIES = 4  # of a model that a run holds at least: the server's, a client's, its gradient, the last snapshot


class RunKeywords(TypedDict, total=False):
    """`RunSettings` and `Training` as keywords of `simulate` and `compare`; the defaults are theirs."""

    model: Model
    privacy: Privacy | None
    keep: Keep
    engine: str | Engine
    device: str
    precision: Precision
    channels_last: bool | None
    compiled: bool
    rounds: int
    local_epochs: int
    local_steps: int | None
    batch_size: int | None
    lr: float
    lr_step: int
    lr_decay: float
    clip: float | None
    participation: float
    optimizer: Optimizer
    momentum: float
    weight_decay: float


def job_of(
    settings: RunSettings, algorithm: Algorithm, federation: Federation, seed: int, device: str = "", processes: int = 1
) -> Job:
    """One run with these settings, on the given device if any; `processes` share that device's memory."""
    return Job.of(
        algorithm,
        federation,
        model_factory(settings.model, federation),
        settings.training,
        seed,
        device_of(device or settings.device),
        precision=settings.precision,
        channels_last=settings.channels_last,
        compiled=settings.compiled,
        processes=processes,
        privacy=settings.privacy,
    )


@dataclass(frozen=True)
class Result:
    """What a run gave. Metrics are fractions; NaN means undefined."""

    test: dict[str, float]  # metrics of the final model on the test part
    history: list[Record]  # one record per round
    state_dict: dict[str, Tensor]  # the final global model
    state: State  # the server's final state, such as its duals
    tally: Tally | None  # the test part's Tally, from which other metrics and intervals can be had
    clients: list[dict[str, float]]  # metrics of the final model on each client's own rows
    seed: int = 0
    notes: list[str] = field(default_factory=list)  # what a reader of the numbers should know
    diverged: str | None = None  # why the run was stopped early, in one sentence
    favourable: int = 1  # the label that the task's metrics are about
    kept: int | None = None  # the round whose model this is, None where it is the last
    scores: dict[str, ScoreHistogram] = field(default_factory=dict)  # of the "validation" and "test" part, if any
    client_scores: dict[str, list[ScoreHistogram]] = field(default_factory=dict)  # the same of each client's own rows
    group_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = [f"{name}={self.test[name]:.4f}" for name in HEADLINE if name in self.test]
        ended = ["diverged"] if self.diverged else []
        return f"Result({', '.join([f'seed={self.seed}', f'rounds={len(self.history)}', *shown, *ended])})"

    def by_group(self) -> DataFrame:
        """Each group's rows, accuracy, rates and loss on the test part: see `Tally.by_group`."""
        return self._tally().by_group(self.favourable, self.group_names)

    def to_dataframe(self) -> DataFrame:
        """One row per round: its record of the history."""
        from pandas import DataFrame

        return DataFrame(self.history).set_index("round")

    def _repr_html_(self) -> str:
        ended = (self.diverged,) if self.diverged else ()
        return frame_html(repr(self), self.to_dataframe() if self.tally is None else self.by_group(), ended)

    @property
    def epsilon(self) -> float | None:
        """The differential privacy budget spent by the whole run, at its settings' delta; None without privacy."""
        return self.history[-1].get("epsilon") if self.history else None

    def interval(self, metric: str, level: float = 0.95, favourable: int | None = None) -> tuple[float, float]:
        """A confidence interval of a test metric over the sampling of the test rows.

        It is about the label that `test` is about, unless another is said to be favourable.
        """
        return self._tally().interval(metric, level, self.favourable if favourable is None else favourable)

    def _tally(self) -> Tally:
        require(self.tally is not None, "The federation has no test part, so there are no test rows to score.")
        assert self.tally is not None
        return self.tally


class DivergedError(UserError):
    """A run's loss, model or dual stopped being finite; `results` holds what there is, history included."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


class SimulateKeywords(RunKeywords, total=False):
    """The optional keywords of `simulate`."""

    threads: int | None
    on_round: Callable[[Record], None] | None
    progress: bool


@overload
def simulate(
    algorithm: Algorithm | str, federation: Federation, *, seed: int = 0, **settings: Unpack[SimulateKeywords]
) -> Result: ...
@overload
def simulate(
    algorithm: Algorithm | str,
    federation: Federation | Sequence[Federation],
    *,
    seed: Sequence[int],
    **settings: Unpack[SimulateKeywords],
) -> list[Result]: ...
@with_keywords(RunSettings, Training)
def simulate(
    algorithm: Algorithm | str,
    federation: Federation | Sequence[Federation],
    *,
    seed: int | Sequence[int] = 0,
    threads: int | None = None,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = False,
    **settings: Unpack[RunKeywords],
) -> Result | list[Result]:
    """Train over a federation and score the final model once on its test part.

    With several seeds the runs are computed together and come back in the order of the seeds; `federation` is then
    one for all, or one per seed. An algorithm's name stands for its default preset. `privacy` adds differential
    privacy and reports `epsilon`; `keep="best"` scores the model of the round with the best validation accuracy
    instead of the last. `on_round` is called with each round's record; `progress` shows a line that is
    rewritten as rounds are done. The other keywords are those of `Training`.
    """
    shared = RunSettings.from_keywords(settings)
    seeds = [seed_of(number) for number in listed(seed)]
    require(bool(seeds), "Seeds are whole numbers from 0 up, at least one of them; got none.")
    require(
        isinstance(federation, Federation | Iterable),
        f"Give a Federation, or a list with one per seed; got {type(federation).__name__}.",
    )
    federations = [federation] * len(seeds) if isinstance(federation, Federation) else listed(federation)
    require(all(isinstance(one, Federation) for one in federations), "Give a Federation, or a list with one per seed.")
    require(on_round is None or callable(on_round), "`on_round` must be a function that takes a record.")
    require(
        threads is None or (isinstance(threads, int) and threads >= 1),
        f"`threads` must be a whole number from 1 up; got {shown(threads)}.",
    )
    require(
        len(federations) == len(seeds), f"{len(seeds)} seeds need one federation, or one each; got {len(federations)}."
    )
    chosen = default_algorithm(algorithm)[0] if isinstance(algorithm, str) else algorithm
    require(
        isinstance(chosen, Algorithm),
        f"The algorithm must be a name or an object such as FFALM(); got {shown(getattr(chosen, '__name__', chosen))}.",
    )
    for owned in federations:
        check_selection(shared.keep, owned)
    runs = [
        Run(job_of(shared, chosen, owned, number), shared.keep)
        for owned, number in zip(federations, seeds, strict=True)
    ]
    first = runs[0].job
    threads = threads or threads_for(checked_model(first))
    require(isinstance(progress, bool), f"`progress` must be True or False; got {shown(progress)}.")
    line = ProgressLine(len(runs) * shared.training.rounds) if progress else None

    def tell(run: Run, record: Record) -> None:
        if on_round is not None:
            on_round(record)
        if line is not None:
            line(f"{chosen.title}, seed {run.job.spec.seed}", record)

    results = compute(runs, choose(shared.engine, first, len(runs))[0], threads, tell)
    if line is not None:
        line.close()
    for note in dict.fromkeys(note for result in results for note in result.notes):
        warnings.warn(note, stacklevel=2)
    failed = [result.diverged for result in results if result.diverged]
    if failed:
        raise DivergedError(failed[0], results)
    return results if isinstance(seed, Iterable) else results[0]


def default_algorithm(name: str) -> tuple[Algorithm, str | None]:
    """The algorithm that a bare name stands for, and the preset that this is, if any."""
    cls = algorithm_class(name)
    return cls(**({} if cls.default_preset is None else cls.presets()[cls.default_preset])), cls.default_preset


class Run:
    """One run while it is computed: its rounds so far, and the model that it would end with."""

    def __init__(self, job: Job, keep: Keep) -> None:
        self.job = job
        self.history: list[Record] = []
        self.selection = ModelSelection(keep)
        self.diverged: str | None = None

    def add(self, done: Round) -> None:
        """Record a round."""
        self.history.append(done.record)
        self.selection.add(done)
        self.diverged = done.diverged

    def finish(self) -> Result:
        """Score the selected model on the test part and on each client's rows."""
        return _scored(self.job, self.history, self.selection.final(), self.diverged)


R = TypeVar("R", bound=Run)


def compute(runs: Sequence[R], engine: Engine, threads: int, on_round: Callable[[R, Record], None]) -> list[Result]:
    """Compute runs to their ends, in one call of the engine."""
    if not runs:
        return []
    with deterministic(threads, tf32=runs[0].job.spec.precision != "fp32"):
        for index, done in engine.train([run.job for run in runs]):
            runs[index].add(done)
            on_round(runs[index], done.record)
        return [run.finish() for run in runs]


def listed(values: Any) -> list[Any]:
    """The items of a list or array; a single value, or an array of no dimensions, is one item."""
    single = not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0 or isinstance(values, str)
    return [values] if single else list(values)


def seed_of(number: Any) -> int:
    """A seed as given; 1.7 is refused rather than cut to 1."""
    try:
        seed = operator.index(number)
    except TypeError:
        seed = -1
    fits = 0 <= seed < 2**63 and not isinstance(number, bool)
    require(fits, f"Seeds are whole numbers from 0 up, of at most 18 digits; got {shown(number)}.")
    return seed


def _scored(job: Job, history: list[Record], final: Snapshot, diverged: str | None) -> Result:
    federation = job.federation
    module = built_model(job.spec)
    module.load_state_dict(final.model)

    def scored(examples: Examples) -> Tally:
        with autocast(job.spec):
            return evaluate(module, examples.to(job.spec.device), federation.task)

    def histogram(examples: Examples) -> ScoreHistogram:
        with autocast(job.spec):
            return score_histogram(module, examples.to(job.spec.device), federation.task)

    parts = {"validation": federation.validation, "test": federation.test}
    own = {"validation": federation.own_parts("validation"), "test": federation.own_parts("test")}
    tally = None if federation.test is None else scored(federation.test)
    clients = Tally.stack([scored(examples) for examples in federation.clients])
    names = federation.task.label_names, federation.task.group_names
    return Result(
        test={} if tally is None else tally.metrics(federation.task.favourable),
        history=history,
        state_dict={name: value.cpu() for name, value in final.model.items()},
        state={name: value.cpu() for name, value in final.state.items()},
        tally=tally,
        clients=clients.metrics_of_each(federation.task.favourable),
        seed=job.spec.seed,
        notes=[] if tally is None else undefined(tally, *names),
        diverged=diverged,
        favourable=federation.task.favourable,
        kept=final.round if final.round != history[-1]["round"] else None,
        scores={name: histogram(part) for name, part in parts.items() if part is not None},
        client_scores={name: [histogram(one) for one in each] for name, each in own.items() if each is not None},
        group_names=federation.task.group_names,
    )


@dataclass(frozen=True)
class Built:
    """An architecture for one shape of input: a model function that engines can tell to be the same as another."""

    architecture: Architecture
    shape: tuple[int, ...]
    labels: int

    def __call__(self) -> nn.Module:
        return self.architecture.build(self.shape, self.labels)


def model_factory(model: Model, federation: Federation) -> ModelFactory:
    """A function that makes a fresh model for the federation's features and labels."""
    if isinstance(model, str):
        model = architecture(model)
    if isinstance(model, nn.Module) or not hasattr(model, "build"):
        return own_model(model)
    made = cast(Architecture, model)
    built = Built(made, tuple(federation.first_rows(1).x.shape[1:]), federation.task.labels)
    plain = replace(built, architecture=from_scratch(made))
    if type(plain.architecture) in ARCHITECTURES.values():
        require_room(_COPIES * _bytes_of(plain), "The model", "take a smaller one")
    return built


@lru_cache
def _bytes_of(built: Built) -> int:
    """The size of a model, found without making its parameters."""
    with torch.device("meta"):
        return sum(tensor.nbytes for tensor in built().state_dict().values())


def own_model(model: Any) -> ModelFactory:
    """A user's own function that makes a model."""
    require(
        not isinstance(model, nn.Module),
        "Give a function that makes the model (`lambda: MyModel()`), since every seed needs a fresh one.",
    )
    require(
        callable(model),
        f"The model must be a name or a function that returns an nn.Module; got {type(model).__name__}.",
    )
    try:
        inspect.signature(model).bind()
    except TypeError:
        raise UserError(
            "The function that makes the model must take no arguments: use `lambda: MyModel(...)`."
        ) from None
    except ValueError:  # some functions of C do not tell what they take
        pass
    return model  # type: ignore[no-any-return]
