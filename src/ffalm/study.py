"""Grids of runs: algorithms x skews x seeds, each in its own run folder, spread over processes and resumable."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ffalm import toml
from ffalm.config import Contender, StudyConfig, settings_of
from ffalm.data.types import Dataset
from ffalm.engines import Engine, Job, Round, choose
from ffalm.engines.common import checked_model
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.hardware import device as device_of
from ffalm.hardware import spread_over, steady, threads_for
from ffalm.keeping import Keeper, check_keeping
from ffalm.outcome import Outcome, Record
from ffalm.partition import Partition
from ffalm.privacy import Mechanism
from ffalm.simulation import finish, model_factory
from ffalm.store import RunFolder, counts_of, intervals_of, locked


@dataclass(frozen=True)
class RunPlan:
    """One cell of the grid."""

    contender: Contender
    alpha: float
    seed: int
    skewed: bool  # whether alpha means anything in this study's partition

    @property
    def folder_name(self) -> str:
        """The run's folder within the study's."""
        short = f"{self.alpha:g}"
        exact = short if float(short) == self.alpha else repr(self.alpha)  # skews that round alike stay apart
        skew = f"-alpha-{exact}" if self.skewed else ""
        return f"{self.contender.key}{skew}-seed-{self.seed}"

    @property
    def title(self) -> str:
        """What a progress bar calls the run."""
        skew = f", alpha {self.alpha:g}" if self.skewed else ""
        return f"{self.contender.label}{skew}, seed {self.seed}"


_KEPT_BYTES = 4 * 2**30  # of clients' rows that a process keeps for the next algorithm

#: Called with a run and its newest record, as rounds are done.
Listener = Callable[[RunPlan, Record], None]


def plans(config: StudyConfig) -> list[RunPlan]:
    """The grid in reading order: by skew, then algorithm, then seed."""
    skewed = config.partition.skewed
    return [
        RunPlan(contender, alpha, seed, skewed)
        for alpha in _alphas(config)
        for contender in config.contenders
        for seed in config.seeds
    ]


def run_folder(config: StudyConfig, folder: Path, plan: RunPlan) -> RunFolder:
    """Where a run lives: below the study's folder, or in it where the study is that run alone."""
    alone = len(_alphas(config)) * len(config.contenders) * len(config.seeds) == 1
    return RunFolder(folder if alone else folder / "runs" / plan.folder_name)


def _alphas(config: StudyConfig) -> tuple[float, ...]:
    """The skews that make a difference."""
    return config.alphas if config.partition.skewed else config.alphas[:1]


@lru_cache(maxsize=1)
def _dataset(source: Any) -> Dataset:
    """The source's data, read once a process."""
    dataset: Dataset = source.load()
    return dataset


_federations: OrderedDict[tuple[Any, Partition, int], Federation] = OrderedDict()


def _federation(source: Any, partition: Partition, seed: int) -> Federation:
    """Shared by the algorithms that are compared on it; the oldest are given up where they take too much memory."""
    key = source, partition, seed
    if key not in _federations:
        _federations[key] = Federation.from_dataset(_dataset(source), partition, seed)
        while len(_federations) > 1 and _held_bytes() > _KEPT_BYTES:
            _federations.popitem(last=False)
    return _federations[key]


def _held_bytes() -> int:
    """Of features; a table that several federations deal out is held once."""
    held = (holding.source.x for federation in _federations.values() for holding in federation.holdings)
    return sum({id(x): x.nbytes for x in held}.values())


def job_of(config: StudyConfig, plan: RunPlan, device: str | None = None, processes: int = 1) -> Job:
    """The job of a cell: its federation is drawn by its seed and skew, the same for every algorithm."""
    source: Any = config.data
    drawn = replace(source, data_seed=plan.seed) if config.fresh_data else source
    federation = _federation(drawn, config.partition_at(plan.alpha), plan.seed)
    factory = model_factory(config.model, federation)
    return Job.of(
        plan.contender.algorithm,
        federation,
        factory,
        config.training,
        plan.seed,
        device_of(device or config.device),
        precision=config.precision,
        channels_last=config.channels_last,
        compiled=config.compiled,
        processes=processes,
        privacy=config.privacy,
    )


def fitting(config: StudyConfig, optional: Collection[str]) -> StudyConfig:
    """The study without those of its optional algorithms that cannot take its data; refused where none would be left.

    Optional are those that nobody asked for by name. The study keeps in mind whom it left out, so that a report of it,
    also of one that was resumed, can say so.
    """
    if not optional:
        return config
    federation = _first(config)
    refused = {
        contender.key: problem
        for contender in config.contenders
        if contender.key in optional and (problem := _refusal(config, contender, federation)) is not None
    }
    kept = tuple(contender for contender in config.contenders if contender.key not in refused)
    if not kept:
        raise next(iter(refused.values()))
    others = tuple(contender for contender in config.contenders if contender.key in refused)
    return replace(config, contenders=kept, left_out=others)


def left_out(config: StudyConfig) -> list[str]:
    """A note on the usual algorithms that were left out, with what each has against the data; none where none was."""
    if not config.left_out:
        return []
    federation = _first(config)
    problems: dict[str, list[str]] = {}  # by what is to be done about them
    for contender in config.left_out:
        wrong, _, remedy = str(_refusal(config, contender, federation) or "").rstrip(".").partition(": ")
        if wrong:  # other data than it was left out for may be to its liking
            problems.setdefault(remedy, []).append(wrong)
    told = [f"{'; '.join(wrong)}{f' ({remedy})' if remedy else ''}" for remedy, wrong in problems.items()]
    return [f"Left out of the usual algorithms: {'; '.join(told)}."] if told else []


def _first(config: StudyConfig) -> Federation:
    """The federation of the study's first run, by which algorithms judge whether they can take the data."""
    return job_of(config, plans(config)[0]).federation


def _refusal(config: StudyConfig, contender: Contender, federation: Federation) -> UserError | None:
    """What an algorithm has against the study's data or privacy, in its own words; None where it takes both."""
    try:
        contender.algorithm.start(federation.task, federation.counts())
        if config.privacy is not None:
            Mechanism.check(contender.algorithm)
    except UserError as error:
        return error
    return None


@dataclass(frozen=True)
class Layout:
    """How a study is spread over this machine: by all of it, not by what is left, so that resuming changes nothing."""

    engine: Engine
    reason: str
    tasks: list[list[RunPlan]]  # runs that one process computes in one call
    devices: list[str]  # one a process
    threads: int

    @property
    def processes(self) -> int:
        """How many processes compute the study."""
        return len(self.devices)


def layout(config: StudyConfig) -> Layout:
    """Check that every algorithm and the model fit the data, then plan the work."""
    grid = plans(config)
    first = job_of(config, grid[0])
    federation = first.federation
    for contender in config.contenders:
        problem = _refusal(config, contender, federation)
        if problem is not None:
            raise problem
    check_keeping(config.keep, first.federation)
    model = checked_model(first)
    devices = spread_over(config.device, config.workers)
    stacked = _tasks(grid, True, len(devices))
    beside = devices[: len(stacked)].count(devices[0])
    engine, reason = choose(config.engine, replace(first, processes=beside), max(map(len, stacked)))
    if engine.spreads:
        devices = devices[:1]
    tasks = _tasks(grid, engine.together, len(devices))
    devices = devices[: len(tasks)]
    return Layout(engine, reason, tasks, devices, threads_for(model, len(devices)))


def _tasks(grid: list[RunPlan], together: bool, processes: int) -> list[list[RunPlan]]:
    """Cut the grid into calls: one a run, or, where an engine computes runs together, seeds of one algorithm.

    Seeds are split further only as far as it takes to give every process something to do.
    """
    if not together:
        return [[plan] for plan in grid]
    stacks: dict[tuple[str, float], list[RunPlan]] = {}
    for plan in grid:
        stacks.setdefault((plan.contender.key, plan.alpha), []).append(plan)
    parts = -(-processes // len(stacks))
    return [stack[first::parts] for stack in stacks.values() for first in range(min(parts, len(stack)))]


def execute(
    config: StudyConfig, folder: Path, task: list[RunPlan], spread: Layout, listener: Listener, device: str
) -> None:
    """Run one task in this process: each run from its last checkpoint to its end, everything kept on the way."""
    beside = max(1, spread.devices.count(device))
    runs = [_Run(config, plan, run_folder(config, folder, plan), device, beside) for plan in task]
    with ExitStack() as held, steady(spread.threads, tf32=config.precision != "fp32"):
        started = [run for run in runs if run.begin(held)]
        for run, number in zip(started, resumable([run.store.saved_rounds() for run in started]), strict=True):
            run.go_back_to(number)
        for index, done in spread.engine.train([run.job for run in started]):
            started[index].keep(done)
            listener(started[index].plan, done.record)
        for run in started:
            run.end()


def resumable(saved: list[list[int]]) -> list[int]:
    """The round from which each run of a task goes on, given the rounds of which it has checkpoints.

    Runs computed together advance together, so a kill leaves some of them one checkpoint ahead. Those go back that
    one, so that the same runs are computed together again and every last bit comes out the same.
    """
    last = [rounds[-1] for rounds in saved]
    ahead = max(last, default=0)
    before = max((rounds[-2] for rounds in saved if rounds[-1] == ahead and len(rounds) > 1), default=ahead)
    return [before if rounds[-1] == ahead and before in last else rounds[-1] for rounds in saved]


class _Run:
    """A run while it is computed: its job, its folder, and what it has come to so far."""

    def __init__(self, config: StudyConfig, plan: RunPlan, store: RunFolder, device: str, beside: int) -> None:
        self.plan, self.store = plan, store
        self.job = job_of(config, plan, device, beside)
        self._config = replace(
            config, contenders=(plan.contender,), alphas=(plan.alpha,), seeds=(plan.seed,), left_out=()
        )
        self._history: list[Record] = []
        self._keeper = Keeper(config.keep)
        self._diverged: str | None = None

    def begin(self, held: ExitStack) -> bool:
        """Take the folder for this process; False where the run is already finished."""
        self.store.start(toml.dumps(settings_of(self._config)))
        held.enter_context(locked(self.store.path))
        return self.store.outcome() is None

    def go_back_to(self, round: int) -> None:
        """Go on from a round of which there is a checkpoint."""
        start, kept = self.store.snapshot(round), self.store.kept(round)
        self._history = self.store.history(round)
        self._keeper.go_on(kept, self._history)
        self.job = replace(self.job, start=start)

    def keep(self, done: Round) -> None:
        """Record a round; a diverged one leaves no checkpoint, there is nothing to go on from."""
        self._history.append(done.record)
        self._keeper.see(done)
        self._diverged = done.diverged
        self.store.append(done.record)
        number = done.snapshot.round
        due = number % self._config.checkpoint_every == 0 or number == self._config.training.rounds
        if done.diverged is None and due:
            self.store.save(done.snapshot, self._keeper.kept)

    def end(self) -> None:
        """Score the final model and write what the run came to."""
        result = finish(self.job, self._history, self._keeper.final(), self._diverged)
        outcome = Outcome(
            label=self.plan.contender.label,
            algorithm=self.plan.contender.algorithm.name,
            seed=self.plan.seed,
            alpha=self.plan.alpha if self.plan.skewed else None,
            test=result.test if self._diverged is None else dict.fromkeys(result.test, math.nan),
            intervals=intervals_of(result, self.job.federation.task.favourable),
            history=self._history,
            seconds=sum(record["seconds"] for record in self._history),
            diverged=self._diverged,
            confusion=counts_of(result),
            kept=result.kept,
        )
        self.store.finish(result, outcome)
