"""The runs of a study: algorithms x skews x seeds, each with its federation, its job and its run folder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from ffalm import simulation
from ffalm.config import AlgorithmEntry, StudyConfig, parse, read
from ffalm.data.compact_features import stored_bytes
from ffalm.data.decode import ENDINGS
from ffalm.data.table_files import files_of
from ffalm.data.types import Dataset
from ffalm.errors import UserError, require
from ffalm.federation import Federation
from ffalm.outcome import LeftOut, Outcome
from ffalm.partition import Partition
from ffalm.privacy import Mechanism
from ffalm.runs import ClientsAlone, Run
from ffalm.settings import number_text
from ffalm.studies.in_memory import InMemory
from ffalm.studies.store import RunFolder

_CACHED_BYTES = 4 * 2**30  # of clients' rows that a process keeps for the next algorithm


@dataclass(frozen=True)
class RunPlan:
    """One cell of the grid."""

    entry: AlgorithmEntry
    alpha: float
    seed: int
    skewed: bool  # whether alpha has an effect in this study's partition

    @property
    def folder_name(self) -> str:
        """The run's folder within the study's."""
        skew = f"-alpha-{number_text(self.alpha)}" if self.skewed else ""
        return f"{self.entry.key}{skew}-seed-{self.seed}"

    @property
    def title(self) -> str:
        """What a progress bar calls the run."""
        skew = f", alpha {self.alpha:g}" if self.skewed else ""
        return f"{self.entry.label}{skew}, seed {self.seed}"


def plans(config: StudyConfig) -> list[RunPlan]:
    """The grid in reading order: by skew, then algorithm, then seed."""
    skewed = config.partition.skewed
    return [
        RunPlan(entry, alpha, seed, skewed)
        for alpha in (config.alphas if skewed else config.alphas[:1])
        for entry in config.entries
        for seed in config.seeds
    ]


def run_place(config: StudyConfig, plan: RunPlan) -> str:
    """The path of a run within its study's folder; a single run has no folder of its own."""
    alone = len(config.entries) * len(config.seeds) == 1 and (len(config.alphas) == 1 or not plan.skewed)
    return "." if alone else f"runs/{plan.folder_name}"


def run_folder(config: StudyConfig, folder: Path, plan: RunPlan) -> RunFolder:
    """The run folder within a study's."""
    return RunFolder(folder / run_place(config, plan))


def finished(config: StudyConfig, folder: Path, plan: RunPlan) -> Outcome | None:
    """The outcome of a run, None while it is not finished; the result of any other run is refused."""
    run = run_folder(config, folder, plan)
    outcome = run.outcome()
    if outcome is not None:
        check_owner(config, run, plan)
    return outcome


def check_owner(config: StudyConfig, run: RunFolder, plan: RunPlan) -> None:
    """Refuse a folder that holds a run with other settings."""
    stored = run.path / "config.toml"
    asked = config.of_run(plan.entry, plan.alpha, plan.seed)
    require(
        not stored.exists() or parse(read(stored)).essence() == asked.essence(),
        f"The folder {run.path} holds a run with other settings than {plan.title}: name another folder with --out.",
    )


@lru_cache(maxsize=1)
def _dataset(source: Any) -> Dataset:
    """The source's data, read once per process unless its files change: see `forget_changed_data`."""
    _states_when_read[source] = _state_of_files(source)
    dataset: Dataset = source.load()
    return dataset


_federations: OrderedDict[tuple[Any, Partition, int], Federation] = OrderedDict()
_states_when_read: dict[Any, list[tuple[Any, ...]]] = {}  # by source


def forget_changed_data() -> None:
    """Drop cached data whose files have changed; called before a study, so that all of its runs have the same rows."""
    known = list(_states_when_read.items())  # a copy, since threads may add some
    changed = [source for source, state in known if state != _state_of_files(source)]
    if changed:
        _dataset.cache_clear()
    for key in [key for key in _federations if key[0] in changed]:
        del _federations[key]
    for source in changed:
        _states_when_read.pop(source, None)


def _state_of_files(source: Any) -> list[tuple[Any, ...]]:
    """Paths, sizes and times of a source's files, which differ once they are written or its relative path moves."""
    paths_given = (getattr(source, name, None) for name in ("file", "labels", "folder", "root"))
    paths = (Path(path).expanduser().absolute() for text in paths_given if text for path in files_of(text))
    states: list[tuple[Any, ...]] = []
    for path in chain.from_iterable(map(_with_content, paths)):
        with suppress(OSError):
            status = path.stat()
            states.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return states


def _with_content(path: Path, levels: int = 2) -> Iterator[Path]:
    """A path and, for a folder, what is in it and in its subfolders, except images: adding one changes its folder."""
    yield path
    with suppress(OSError):
        for one in sorted(path.iterdir()) if levels and path.is_dir() else ():
            if not one.name.lower().endswith(ENDINGS):
                yield from _with_content(one, levels - 1)


def _federation(source: Any, partition: Partition, seed: int) -> Federation:
    """A federation, shared by the algorithms that are compared; the oldest are dropped if they take too much memory."""
    key = source, partition, seed
    if key not in _federations:
        _federations[key] = Federation.from_dataset(_dataset(source), partition, seed)
        while len(_federations) > 1 and _cached_bytes() > _CACHED_BYTES:
            _federations.popitem(last=False)
    return _federations[key]


def _cached_bytes() -> int:
    """The bytes of all cached features; a table that several federations share counts once."""
    held = (view.source.x for federation in _federations.values() for view in federation.row_views)
    return sum({id(x): stored_bytes(x) for x in held}.values())


def federation_of(config: StudyConfig, plan: RunPlan) -> Federation:
    """The federation of a run, drawn by its seed and skew: the same for every algorithm."""
    source: Any = config.data
    if isinstance(source, InMemory) and source.federations:
        return source.federations[config.seeds.index(plan.seed) % len(source.federations)]
    return _federation(_drawn(config, plan), replace(config.partition, alpha=plan.alpha), plan.seed)


def _drawn(config: StudyConfig, plan: RunPlan) -> Any:
    """The data source of a run."""
    source: Any = config.data
    return replace(source, data_seed=plan.seed) if config.fresh_data else source


def problem_without(config: StudyConfig, site: str) -> UserError | None:
    """Why a study of all sites cannot be computed without one of them, such as the only one that has a group's rows."""
    plan = plans(config)[0]
    cut = replace(config.partition, alpha=plan.alpha, leave_out=site)
    try:
        federation = Federation.from_dataset(_dataset(_drawn(config, plan)), cut, plan.seed)
    except UserError as error:
        return error
    problems = (refusal(config, entry, federation) for entry in config.entries)
    return next((one for one in problems if one is not None), None)


def require_unchanged(folder: Path, fingerprint: str) -> None:
    """Refuse the data of a study in a folder if its rows are known to differ from those that it was started with."""
    forget_changed_data()
    config = parse(read(folder / "config.toml"))
    require(
        fingerprint in ("", federation_of(config, plans(config)[0]).fingerprint()),
        f"The data of the study in {folder} has changed since it was started: restore it, or a blind rule could be "
        "fitted to rows that trained the model.",
    )


def require_computed_on(federation: Federation, run: RunFolder) -> None:
    """Refuse a federation on which not all runs of a study were computed."""
    given = parse(read(run.path / "config.toml")).data
    if not isinstance(given, InMemory):
        raise UserError("This study loads its data again: leave `federation` out of `answer`.")
    require(
        InMemory.of(federation, 1) == given,
        "The runs of this study were not all computed on the federation given, and its rows may have trained some of "
        "their models. In a study of several federations, call `study.blind(run, federation=...)` for "
        "each run with its own.",
    )


def require_own(federation: Federation, config: StudyConfig, first: str) -> None:
    """Refuse a federation that is not a run's own; `first` is the fingerprint of the first run's federation.

    A study of several federations in memory stores one fingerprint of all, so that none of them can be refused.
    """
    found, given = federation.fingerprint(), config.data
    if not isinstance(given, InMemory):
        same = federation_of(config, plans(config)[0]).fingerprint() == found
    else:
        several = given.fingerprint != InMemory.together([first])
        same = several or found == first
    require(
        same,
        "The federation given is not the one on which this run was computed, and its rows may have trained the model: "
        "give the run's own.",
    )


def run_of(config: StudyConfig, plan: RunPlan, device: str = "", processes: int = 1) -> Run | ClientsAlone:
    """A run that is about to be computed."""
    return simulation.run_of(config, plan.entry.algorithm, federation_of(config, plan), plan.seed, device, processes)


def drop_incompatible(config: StudyConfig, optional: Collection[str]) -> tuple[StudyConfig, list[LeftOut]]:
    """The study without those of its optional algorithms that cannot take its data, and why each was left out.

    Algorithms that the user did not name are optional. A study with no algorithm left is refused.
    """
    if not optional:
        return config, []
    federation = federation_of(config, plans(config)[0])
    refused = {entry.key: refusal(config, entry, federation) for entry in config.entries if entry.key in optional}
    problems = {key: problem for key, problem in refused.items() if problem is not None}
    kept = tuple(entry for entry in config.entries if entry.key not in problems)
    if not kept:
        raise next(iter(problems.values()))
    left_out = [LeftOut(entry.label, str(problems[entry.key])) for entry in config.entries if entry.key in problems]
    return replace(config, entries=kept), left_out


def refusal(config: StudyConfig, entry: AlgorithmEntry, federation: Federation) -> UserError | None:
    """Why an algorithm cannot take the study's data or privacy; None if it takes both."""
    try:
        entry.algorithm.start(federation.task, federation.counts())
        if config.privacy is not None:
            Mechanism.check(entry.algorithm)
    except UserError as error:
        return error
    return None
