"""`ffalm.simulate`: train one algorithm over a federation in this process and score the result."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, overload

from torch import Tensor, nn

from ffalm.algorithms import Algorithm, State, algorithm_class
from ffalm.data.types import Examples
from ffalm.engines import Engine, Job, ModelFactory, Precision, Snapshot, Training, choose
from ffalm.engines.common import autocast, built_model, checked_model, evaluate
from ffalm.errors import UserError, require
from ffalm.fairness import Tally, undefined
from ffalm.federation import Federation
from ffalm.hardware import device as device_of
from ffalm.hardware import steady, threads_for
from ffalm.keeping import Keep, Keeper, check_keeping
from ffalm.models import Architecture, architecture
from ffalm.outcome import Record
from ffalm.privacy import Privacy
from ffalm.settings import build

Model = str | Architecture | ModelFactory


@dataclass(frozen=True)
class Result:
    """What a run gave. Metrics are fractions; NaN means undefined."""

    test: dict[str, float]  # metrics of the final model on the test part
    history: list[Record]  # one record a round
    state_dict: dict[str, Tensor]  # the final global model
    state: State  # the server's final state, such as its duals
    tally: Tally | None  # the test part's Tally, from which other metrics and intervals can be had
    clients: list[dict[str, float]]  # metrics of the final model on each client's own rows
    seed: int = 0
    notes: list[str] = field(default_factory=list)  # what a reader of the numbers should know
    diverged: str | None = None  # why the run was stopped early, in one sentence
    favourable: int = 1  # the label that the task's metrics are about
    kept: int | None = None  # the round whose model this is, None where it is the last

    @property
    def epsilon(self) -> float | None:
        """What the whole run has told about any one client, at the delta of its privacy; None without privacy."""
        return self.history[-1].get("epsilon") if self.history else None

    def interval(self, metric: str, level: float = 0.95, favourable: int | None = None) -> tuple[float, float]:
        """A confidence interval of a test metric over the sampling of the test rows.

        It is about the label that `test` is about, unless another is said to be favourable.
        """
        require(self.tally is not None, "The federation has no test part, so there is nothing to take an interval of.")
        assert self.tally is not None
        return self.tally.interval(metric, level, self.favourable if favourable is None else favourable)


class DivergedError(UserError):
    """A run's loss, model or dual stopped being finite; `results` holds what there is, history included."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


@overload
def simulate(algorithm: Algorithm | str, federation: Federation, *, seed: int = 0, **settings: Any) -> Result: ...
@overload
def simulate(
    algorithm: Algorithm | str,
    federation: Federation | Sequence[Federation],
    *,
    seed: Sequence[int],
    **settings: Any,
) -> list[Result]: ...
def simulate(
    algorithm: Algorithm | str,
    federation: Federation | Sequence[Federation],
    *,
    seed: int | Sequence[int] = 0,
    model: Model = "mlp",
    engine: str | Engine = "auto",
    device: str = "auto",
    threads: int | None = None,
    precision: Precision = "fp32",
    channels_last: bool | None = None,
    compiled: bool = False,
    privacy: Privacy | None = None,
    keep: Keep = "last",
    on_round: Callable[[Record], None] | None = None,
    **training: Any,
) -> Result | list[Result]:
    """Train over a federation and score the final model once on its test part.

    With several seeds the runs are computed together and come back in the order of the seeds; `federation` is then
    one for all, or one a seed. `training` takes the settings of `Training`: rounds, local_epochs, local_steps,
    batch_size, lr, lr_step, lr_decay, clip, participation. `privacy` puts noise on what the clients send and tells
    what that is worth as `epsilon`. `keep="best"` gives the model of the round that was most accurate on the
    validation part instead of the last round's. `on_round` sees each record as it is made.
    """
    seeds = [_seed(number) for number in (seed if isinstance(seed, Iterable) else [seed])]
    require(bool(seeds), "Seeds are whole numbers from 0 up, at least one of them; got none.")
    require(
        isinstance(federation, Federation | Iterable),
        f"Give a Federation, or a list with one a seed; got {type(federation).__name__}.",
    )
    federations = [federation] * len(seeds) if isinstance(federation, Federation) else list(federation)
    require(
        len(federations) == len(seeds), f"{len(seeds)} seeds need one federation, or one each; got {len(federations)}."
    )
    chosen = algorithm_class(algorithm)() if isinstance(algorithm, str) else algorithm
    require(
        isinstance(chosen, Algorithm),
        f"The algorithm must be a name or an object such as FFALM(); got {getattr(chosen, '__name__', chosen)!r}.",
    )
    plan = build(Training, training, "training")
    where = device_of(device)
    jobs = [
        Job.of(
            chosen,
            owned,
            model_factory(model, owned),
            plan,
            number,
            where,
            precision=precision,
            channels_last=channels_last,
            compiled=compiled,
            privacy=privacy,
        )
        for owned, number in zip(federations, seeds, strict=True)
    ]
    require(keep in get_args(Keep), f"`keep` is 'last' or 'best'; got {keep!r}.")
    for owned in federations:
        check_keeping(keep, owned)
    histories: list[list[Record]] = [[] for _ in jobs]
    keepers = [Keeper(keep) for _ in jobs]
    ended: dict[int, str] = {}
    with steady(threads or threads_for(checked_model(jobs[0])), tf32=precision != "fp32"):
        for index, done in choose(engine, jobs[0], len(jobs))[0].train(jobs):
            histories[index].append(done.record)
            keepers[index].see(done)
            if done.diverged:
                ended[index] = done.diverged
            if on_round is not None:
                on_round(done.record)
        results = [
            finish(job, history, keeper.final(), ended.get(index))
            for index, (job, history, keeper) in enumerate(zip(jobs, histories, keepers, strict=True))
        ]
    for note in dict.fromkeys(note for result in results for note in result.notes):
        warnings.warn(note, stacklevel=2)
    failed = [result.diverged for result in results if result.diverged]
    if failed:
        raise DivergedError(failed[0], results)
    return results if isinstance(seed, Iterable) else results[0]


def _seed(number: Any) -> int:
    """A seed as given; 1.7 is refused rather than cut to 1."""
    try:
        seed = operator.index(number)
    except TypeError:
        seed = -1
    require(seed >= 0, f"Seeds are whole numbers from 0 up; got {number!r}.")
    return seed


def finish(job: Job, history: list[Record], final: Snapshot, diverged: str | None = None) -> Result:
    """Score a run's last model on the test part and on each client's rows."""
    federation = job.federation
    module = built_model(job.spec)
    module.load_state_dict(final.model)

    def scored(examples: Examples) -> Tally:
        with autocast(job.spec):
            return evaluate(module, examples.to(job.spec.device), federation.task)

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
    if isinstance(model, nn.Module):
        raise UserError(
            "Give a function that makes the model (`lambda: MyModel()`), since every seed needs a fresh one."
        )
    if hasattr(model, "build"):
        return Built(model, tuple(federation.first_rows(1).x.shape[1:]), federation.task.labels)
    if callable(model):
        return model
    raise UserError(f"The model must be a name or a function that returns an nn.Module; got {type(model).__name__}.")


__all__ = ["DivergedError", "Model", "Result", "finish", "model_factory", "simulate"]
