"""How a study is spread over this machine, and how one process computes its share of the runs, resumably."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ffalm.config import StudyConfig
from ffalm.engines import Engine, Job, Round, Together, choose, why_loop
from ffalm.engines.common import checked_model
from ffalm.engines.loop import LoopEngine
from ffalm.engines.prepared_jobs import grouped
from ffalm.errors import require
from ffalm.outcome import Record
from ffalm.runs import Result, Run, compute
from ffalm.simulation import placed
from ffalm.studies.grid import RunPlan, check_owner, federation_of, plans, refusal, run_folder, run_of
from ffalm.studies.store import RunFolder, locked, outcome_of
from ffalm.system import toml
from ffalm.system.hardware import spread_over, threads_for
from ffalm.trained_models.model_selection import check_selection

#: Called with a run and its newest record, as rounds are done.
Listener = Callable[[RunPlan, Record], None]


@dataclass(frozen=True)
class Task:
    """Runs that one process computes in one call of an engine."""

    engine: Engine
    runs: list[RunPlan]


@dataclass(frozen=True)
class ExecutionPlan:
    """How a study is spread over this machine. Finished runs count too, so that resuming changes nothing."""

    engine: Engine
    reason: str  # why it is this engine
    tasks: list[Task]
    devices: list[str]  # one per process
    threads: int
    by_loop: Mapping[str, str] = field(default_factory=dict)  # algorithms that `engine` cannot take, and why

    @property
    def engines(self) -> str:
        """Every engine with the reason for it."""
        others = (f"; {label} by loop: {reason}" for label, reason in self.by_loop.items())
        return f"{self.engine.name} ({self.reason}{''.join(others)})"

    @property
    def processes(self) -> int:
        """How many processes compute the study."""
        return len(self.devices)


def plan_execution(config: StudyConfig, begun_by: str = "") -> ExecutionPlan:
    """Check that every algorithm and the model fit the data, then plan the work.

    "auto" chooses one engine for all algorithms but those that only `loop` can take. `begun_by` is the engine that it
    chose when the study was started, which is kept even if free memory now differs.
    """
    grid = plans(config)
    federation = federation_of(config, grid[0])
    for entry in config.entries:
        problem = refusal(config, entry, federation)
        if problem is not None:
            raise problem
    check_selection(config.keep, federation)
    first = run_of(config, _typical(grid)).jobs[0]
    model = checked_model(first)
    devices = spread_over(placed(config.device, first.spec.model), config.workers)
    why_by_loop = _by_loop(config, first)
    others = [plan for plan in grid if plan.entry.key not in why_by_loop]
    # A call of an engine computes one or several runs: how many these are at most depends on what it takes together.
    largest_calls = {kind: max(map(len, _calls(others, kind, len(devices)))) for kind in Together}
    call_count = len(_calls(others, Together.CLIENTS, len(devices))) + len(grid) - len(others)
    algorithms = [entry.algorithm for entry in config.entries if entry.key not in why_by_loop]
    job = replace(run_of(config, _typical(others)).jobs[0], processes=devices[:call_count].count(devices[0]))
    engine, reason = choose(begun_by or config.engine, job, largest_calls, algorithms)
    reason = "as when the study was started" if begun_by else reason
    if engine.spreads:
        devices = devices[:1]
    tasks = [Task(engine, runs) for runs in _calls(others, engine.together, len(devices))]
    loops = [Task(LoopEngine(), [plan]) for plan in grid if plan.entry.key in why_by_loop]
    tasks = loops + tasks if len(devices) > 1 else tasks + loops  # several processes: the longest first; one: last
    devices = devices[: len(tasks)]
    labels = {entry.key: entry.label for entry in config.entries}
    by_loop = {labels[key]: reason for key, reason in why_by_loop.items()} if engine.name != "loop" else {}
    return ExecutionPlan(engine, reason, tasks, devices, threads_for(model, len(devices)), by_loop)


def _typical(grid: list[RunPlan]) -> RunPlan:
    """A run whose clients hold what most runs' clients hold."""
    return next((one for one in grid if one.entry.algorithm.trains_on == "clients"), grid[0])


def _by_loop(config: StudyConfig, job: Job) -> dict[str, str]:
    """The algorithms that "auto" computes by `loop` while the others have a faster engine, by key, and why."""
    if config.engine != "auto":
        return {}
    reasons = {entry.key: why_loop(entry.algorithm, job) for entry in config.entries}
    slow = {key: reason for key, reason in reasons.items() if reason is not None}
    return slow if len(slow) < len(reasons) else {}


def _calls(grid: list[RunPlan], together: Together, processes: int) -> list[list[RunPlan]]:
    """Cut the grid into calls: one per run, or runs that an engine computes together.

    Those are the seeds of algorithms that differ only in settings of the server, or all algorithms of one seed. Calls
    are split only as far as needed to give every process its share; for several processes the longest come first.
    """
    if together is Together.NONE:
        return [[plan] for plan in grid]
    stacks = grouped(grid, _same_clients if together is Together.CLIENTS else _same_seed)
    share = -(-len(grid) // processes)
    tasks = []
    for stack in stacks:
        parts = min(len(stack), max(-(-processes // len(stacks)), -(-len(stack) // share)))
        tasks += [stack[first::parts] for first in range(parts)]
    return sorted(tasks, key=len, reverse=True) if processes > 1 else tasks


def _same_clients(first: RunPlan, second: RunPlan) -> bool:
    return first.alpha == second.alpha and first.entry.algorithm.trains_like(second.entry.algorithm)


def _same_seed(first: RunPlan, second: RunPlan) -> bool:
    return (first.alpha, first.seed) == (second.alpha, second.seed)


def execute(
    config: StudyConfig, folder: Path, task: Task, spread: ExecutionPlan, listener: Listener, device: str
) -> None:
    """Compute one task in this process: each run from its last checkpoint to its end."""
    beside = max(1, spread.devices.count(device))
    with ExitStack() as held, ThreadPoolExecutor(1) as writer:
        stores = [(plan, run_folder(config, folder, plan)) for plan in task.runs]
        runs = [_StoredRun(config, plan, store, device, beside, writer) for plan, store in stores]
        started = [run for run in runs if run.begin(held)]
        damaged = any(run.store.problems() for run in started)
        saved = [run.store.saved_rounds() for run in started]
        for run, number in zip(started, resumable(saved, damaged), strict=True):
            run.resume(number)
        compute(started, task.engine, spread.threads, lambda run, record: listener(run.plan, record))
        for run in started:
            run.wait()


def resumable(saved: list[list[int]], damaged: bool = False) -> list[int]:
    """The round from which each run of a task resumes, given the rounds of which it has checkpoints.

    Runs that are computed together advance together, so a kill may leave some of them one checkpoint ahead. Those go
    back by one, so that the same runs are computed together again and the results are equal bit by bit. If checkpoints
    are damaged, all runs go back to the last round of which all have one.
    """
    if damaged and saved:
        return [max(set.intersection(*map(set, saved)))] * len(saved)
    last = [rounds[-1] for rounds in saved]
    ahead = max(last, default=0)
    before = max((rounds[-2] for rounds in saved if rounds[-1] == ahead and len(rounds) > 1), default=ahead)
    return [before if rounds[-1] == ahead and before in last else rounds[-1] for rounds in saved]


class _StoredRun:
    """A run whose rounds are kept in a run folder, from which it can be resumed if it has one model.

    A thread waits for the disk: syncing a few files can take as long as a round, or as scoring the next run.
    """

    def __init__(
        self, config: StudyConfig, plan: RunPlan, store: RunFolder, device: str, beside: int, writer: Executor
    ) -> None:
        self.plan, self.store, self._config, self._writer = plan, store, config, writer
        self._written: Future[None] | None = None
        self._run = run_of(config, plan, device, beside)

    @property
    def jobs(self) -> Sequence[Job]:
        """The run's trainings."""
        return self._run.jobs

    def begin(self, held: ExitStack) -> bool:
        """Lock the folder for this process; False if the run is already finished."""
        self.store.path.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(self.store.path))
        check_owner(self._config, self.store, self.plan)
        alone = self._config.of_run(self.plan.entry, self.plan.alpha, self.plan.seed)
        self.store.start(toml.dumps(alone.to_plain()))
        return self.store.outcome() is None

    def resume(self, round: int) -> None:
        """Continue from the checkpoint of a round: the last one that is sound."""
        for problem in self.store.problems():
            print(f"ffalm: warning: {problem} {self.plan.title} resumes from round {round}.", file=sys.stderr)
        start, selected = self.store.snapshot(round), self.store.kept(round)
        history = self.store.history(round)
        require(
            len(history) == round,
            f"The history in {self.store.path} is damaged: delete that folder to repeat this run.",
        )
        if isinstance(self._run, Run):
            self._run.history = history
            self._run.selection.resume(selected, history)
            self._run.job = replace(self._run.job, start=start)

    def add(self, place: int, done: Round) -> Record | None:
        """Record a round, on disk too; a diverged round leaves no checkpoint to resume from."""
        record = self._run.add(place, done)
        if record is None:
            return None
        self.store.append(record)
        number = done.snapshot.round
        last = number == self._config.training.rounds  # not synced, since the result follows
        due = number % self._config.checkpoint_every == 0 or last
        if done.diverged is None and due and isinstance(self._run, Run):
            self.store.save(done.snapshot, self._run.selection.selected, not last, self._writer)
        return record

    def finish(self) -> Result:
        """Score the selected model and begin to write the result."""
        result, plan = self._run.finish(), self.plan
        alpha = plan.alpha if plan.skewed else None
        outcome = outcome_of(result, plan.entry.label, plan.entry.algorithm.name, alpha)
        self._written = self._writer.submit(self.store.finish, result, outcome)
        return result

    def wait(self) -> None:
        """Wait until the result is written."""
        if self._written is not None:
            self._written.result()
