"""`ffalm.simulate`: train one algorithm over a federation in this process and score the result.

Studies compute their runs by the same `RunSettings`, `Run` and `compute`, and keep them on disk as well.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor, nn

from ffalm.algorithms import Algorithm, FedAvg, algorithm_class
from ffalm.engines import Engine, Job, ModelFactory, Together, choose
from ffalm.engines.common import checked_model
from ffalm.errors import TrainingDiverged, UserError, require, short_repr
from ffalm.federation import Federation
from ffalm.models import ARCHITECTURES, Architecture, architecture, from_scratch
from ffalm.outcome import Record
from ffalm.progress import ProgressLine
from ffalm.run_settings import Keep, Optimizer, Precision, Privacy, RunSettings, Training
from ffalm.runs import ClientsAlone, Result, Run, compute
from ffalm.settings import with_keywords
from ffalm.system.hardware import device as device_of
from ffalm.system.hardware import threads_for
from ffalm.system.memory import require_room
from ffalm.system.torch_modes import usual_modes
from ffalm.trained_models.model_selection import check_selection
from ffalm.trained_models.run_facts import description_of
from ffalm.trained_models.trained_model import TrainedModel

Model = str | Architecture | ModelFactory

_MOST_THREADS = 1024  # OpenMP ends the process if it cannot start as many as requested
_SMALL = 2**18  # bytes of a model: 64 hidden units for up to 1,000 features
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


def run_of(
    settings: RunSettings, algorithm: Algorithm, federation: Federation, seed: int, device: str = "", processes: int = 1
) -> Run | ClientsAlone:
    """A run with these settings, on the given device if any; `processes` share that device's memory.

    Its jobs are one training over all clients or on their pooled rows, or one for each client alone.
    """
    trained = {
        "clients": lambda: [federation],
        "pooled": lambda: [federation.pooled()],
        "alone": lambda: [federation.alone(client) for client in range(len(federation.clients))],
    }[algorithm.trains_on]()
    factory = model_factory(settings.model, trained[0])
    jobs = [
        Job.of(
            algorithm,
            owned,
            factory,
            settings.training,
            seed,
            device_of(device or placed(settings.device, factory)),
            precision=settings.precision,
            channels_last=settings.channels_last,
            compiled=settings.compiled,
            processes=processes,
            privacy=settings.privacy,
        )
        for owned in trained
    ]
    alone = algorithm.trains_on == "alone"
    return ClientsAlone(jobs, settings.keep, federation) if alone else Run(jobs[0], settings.keep, federation)


class DivergedError(TrainingDiverged):
    """A run's loss, model or dual stopped being finite; `results` holds the results so far, with their history."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its results: an error that cannot be unpickled breaks or blocks a pool of processes."""
        return type(self), (str(self), self.results)


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
    instead of the last. `model` is the name of an architecture, or a function that makes an `nn.Module`; `threads` are
    torch's, 1 unless the model has convolutions. `on_round` is called with each round's record; `progress` shows a
    progress line. The other keywords are settings of training: `ffalm settings training` lists them.

    Modes that the program has set in torch (`torch.no_grad`, autocast, a default device) do not change the results.
    Threads that train at the same time take turns, so `on_round` must not wait for another thread that trains or loads
    a model.
    """
    shared = RunSettings.from_keywords(settings)
    seeds = [seed_of(number) for number in listed(seed)]
    require(bool(seeds), "Seeds are whole numbers from 0 up, at least one of them; got none.")
    require(
        isinstance(federation, Federation | Iterable),
        f"Give a Federation, or a list with one per seed; got {type(federation).__name__}.",
    )
    federations = [federation] * len(seeds) if isinstance(federation, Federation) else listed(federation)
    other = next((one for one in federations if not isinstance(one, Federation)), None)
    require(
        other is None,
        f"Give a Federation, such as `ffalm.load(...)` returns, or a list with one per seed; got {short_repr(other)}.",
    )
    require(on_round is None or callable(on_round), "`on_round` must be a function that takes a record.")
    require(
        threads is None or (type(threads) is int and 1 <= threads <= _MOST_THREADS),
        f"`threads` must be a whole number from 1 to {_MOST_THREADS}; got {short_repr(threads)}.",
    )
    require(
        len(federations) == len(seeds), f"{len(seeds)} seeds need one federation, or one each; got {len(federations)}."
    )
    chosen = default_algorithm(algorithm)[0] if isinstance(algorithm, str) else algorithm
    require(
        isinstance(chosen, Algorithm),
        "The algorithm must be a name or an object such as FFALM(); got "
        f"{short_repr(getattr(chosen, '__name__', chosen))}.",
    )
    for owned in federations:
        check_selection(shared.keep, owned)
    require(isinstance(progress, bool), f"`progress` must be True or False; got {short_repr(progress)}.")
    line = ProgressLine(len(seeds) * shared.training.rounds) if progress else None

    def tell(run: Run | ClientsAlone, record: Record) -> None:
        if on_round is not None:
            on_round(dict(record))  # its own: the history is kept
        if line is not None:
            line(f"{chosen.title}, seed {run.jobs[0].spec.seed}", record)

    with usual_modes():
        runs = [run_of(shared, chosen, owned, number) for owned, number in zip(federations, seeds, strict=True)]
        first = runs[0].jobs[0]
        threads = threads or threads_for(checked_model(first))
        engine = choose(shared.engine, first, {Together.CLIENTS: len(runs)}, [chosen])[0]
        results = compute(runs, engine, threads, tell)
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
    require(fits, f"Seeds are whole numbers from 0 up, of at most 18 digits; got {short_repr(number)}.")
    return seed


def rebuilt(weights: Mapping[str, Tensor], federation: Federation, settings: RunKeywords) -> TrainedModel:
    """A trained model from its weights and the settings that made it."""
    (job,) = run_of(RunSettings.from_keywords(settings), FedAvg(), federation, 0).jobs
    return TrainedModel.of(weights, description_of(job), job.spec.model, device=job.spec.device)


@dataclass(frozen=True)
class ArchitectureFactory:
    """An architecture for one shape of input: a model function that can be compared with another."""

    architecture: Architecture
    shape: tuple[int, ...]
    labels: int

    def __call__(self) -> nn.Module:
        return self.architecture.build(self.shape, self.labels)

    @property
    def small(self) -> bool:
        """Whether a core computes a batch in the time that a GPU takes to start its kernels, as for most tables."""
        plain = replace(self, architecture=from_scratch(self.architecture))
        ours = type(plain.architecture) in ARCHITECTURES.values()
        return ours and len(self.shape) == 1 and _bytes_of(plain) < _SMALL


def placed(device: str, factory: ModelFactory) -> str:
    """The device of a study, where "auto" is the CPU for small models of tables, whatever GPU there is."""
    return "cpu" if device == "auto" and isinstance(factory, ArchitectureFactory) and factory.small else device


def model_factory(model: Model, federation: Federation) -> ModelFactory:
    """A function that makes a fresh model for the federation's features and labels."""
    if isinstance(model, str):
        model = architecture(model)
    if isinstance(model, nn.Module) or not hasattr(model, "build"):
        return own_model(model)
    made = cast(Architecture, model)
    built = ArchitectureFactory(made, tuple(federation.first_rows(1).x.shape[1:]), federation.task.labels)
    plain = replace(built, architecture=from_scratch(made))
    if type(plain.architecture) in ARCHITECTURES.values():
        require_room(_COPIES * _bytes_of(plain), "The model", "take a smaller one")
    return built


@lru_cache
def _bytes_of(built: ArchitectureFactory) -> int:
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
    except ValueError:  # some functions written in C have no signature
        pass
    return model  # type: ignore[no-any-return]
