"""Studies: `ffalm.compare` in Python, `ffalm run`, `compare` and `reproduce` on the command line, by one path.

`begin` checks a study and claims its folder; `OpenStudy.compute` computes the runs that it does not hold yet, and
returns the `Study` in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from torch import nn

from ffalm.algorithms import Algorithm, algorithms
from ffalm.config import AlgorithmEntry, StudyConfig, entry_of, parse, partitions_of, read
from ffalm.data import find_source
from ffalm.data.table import Table
from ffalm.data.types import Source
from ffalm.errors import UserError, require, short_repr
from ffalm.federation import Federation, load, owners_partition
from ffalm.models import ARCHITECTURES, Architecture, Pretrained, architecture
from ffalm.outcome import Record, StudyRecord
from ffalm.partition import EACH, Kind
from ffalm.progress import ProgressLine
from ffalm.run_settings import MOST_SEEDS, RunSettings, Training
from ffalm.settings import build, with_keywords
from ffalm.simulation import Model, RunKeywords, default_algorithm, listed, own_model, seed_of
from ffalm.studies import cluster, workers
from ffalm.studies.describe import RECORD, check_same, lay_out, read_record, write_record
from ffalm.studies.execution import ExecutionPlan, Listener, plan_execution
from ffalm.studies.grid import RunPlan, drop_incompatible, federation_of, finished, forget_changed_data, plans
from ffalm.studies.in_memory import CustomModel, InMemory
from ffalm.studies.learning_rate import choose_rate
from ffalm.studies.results import Study
from ffalm.studies.store import locked
from ffalm.system import toml
from ffalm.system.files import remove_leftovers, write_atomic
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.candidates import lagrangians
from ffalm.targets.target import DEFAULT, Repair, Scope, Target

if TYPE_CHECKING:
    from pandas import DataFrame

#: The defaults of `compare`.
ALGORITHMS = ("fedavg", "fairfed", "fpfl", "ffalm")
SEEDS = 5

Named = str | Algorithm
Existing = Literal["refuse", "resume", "share"]
"""What to do about a folder that holds something: refuse, resume the same study, or add the runs of another."""


@with_keywords(RunSettings, Training)
def compare(
    data: str | os.PathLike[str] | DataFrame | Federation | Sequence[Federation] = "census",
    algorithms: Named | Sequence[Named] | Mapping[str, Named] | None = None,
    *,
    seeds: int | Sequence[int] = SEEDS,
    partition: Kind | None = None,
    clients: int | None = None,
    alpha: float | Sequence[float] | None = None,
    min_rows: int | None = None,
    leave_out: str | None = None,
    label: str | None = None,
    group: str | Sequence[str] | None = None,
    favourable: Any = None,
    owner: str | None = None,
    data_settings: Mapping[str, Any] | None = None,
    fresh_data: bool = False,
    workers: int | None = 1,
    checkpoint_every: int = 1,
    target: str | Target | None = DEFAULT,
    repair: Repair = "groups",
    confidence: float | None = None,
    scope: Scope = "federation",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_round: Listener | None = None,
    progress: bool = False,
    **settings: Unpack[RunKeywords],
) -> Study:
    """Train several algorithms over several seeds and Dirichlet skews, and put them side by side.

    - `data`: a source by name, the path of a table, a data frame, or federations: one for all seeds, or one per seed;
    - `algorithms`: names (each stands for its default preset) or objects, or a dict of them by the names that tables
      show. Left out, the usual four are compared, except those that cannot take the data;
    - `seeds`: how many, or a list; a seed draws the partition, the model and the batches;
    - `partition`, `clients`, `alpha` (one or several), `min_rows`, `leave_out`: the fields of `Partition`, with its
      defaults; `leave_out` names an owner that does not train, on whose rows models are tested;
    - `label`, `group`, `favourable`, `owner`: columns of a table; `data_settings`: any setting of the data source;
    - `workers`: processes; more than 1 needs the script's main part under `if __name__ == "__main__":`. None: one per
      core. The numbers do not depend on it;
    - `target`: the fairness target that `study.answer()` and the report answer, such as "eod <= 0.05"; without
      `algorithms` those that aim at it are trained too. `repair`, `confidence` and `scope` are as in `Study.answer`;
    - `out`: a folder for all runs; with `resume` a study that was stopped continues there. Without it the runs are
      kept as long as the `Study` object is;
    - `progress`: show a line that is rewritten as rounds are done, in notebooks and terminals;
    - the other keywords are those of `simulate`. Without `lr`, a target on a table of your own has the learning rate
      chosen on held-out rows: 0.05, 0.2, 0.5 or 1.

    A run that diverges raises nothing: the study's table and `results` say so.
    """
    shared = RunSettings.from_keywords(settings)
    require(isinstance(shared.engine, str), "A study records its engine: give it by its name.")
    given_seeds = range(min(seed_of(seeds), MOST_SEEDS + 1)) if not isinstance(seeds, Iterable) else listed(seeds)
    seed_numbers = tuple(seed_of(number) for number in given_seeds)
    require(isinstance(data_settings, Mapping | None), "`data_settings` must be a dict of settings by name.")
    require(isinstance(fresh_data, bool), f"`fresh_data` must be True or False; got {short_repr(fresh_data)}.")
    require(isinstance(resume, bool), f"`resume` must be True or False; got {short_repr(resume)}.")
    require(isinstance(out, str | os.PathLike | None), f"`out` must be the path of a folder; got {short_repr(out)}.")
    require(on_round is None or callable(on_round), "`on_round` must be a function that takes a run and a record.")
    require(isinstance(progress, bool), f"`progress` must be True or False; got {short_repr(progress)}.")
    source_settings = _without_none({"label": label, "group": group, "favourable": favourable, "owner": owner})
    source_settings |= data_settings or {}
    division = _without_none({"kind": partition, "clients": clients, "alpha": alpha, "min_rows": min_rows,
                         "leave_out": leave_out})  # fmt: skip
    require(leave_out != EACH, "To leave every site out in turn, call `ffalm.leave_one_out(...)`.")
    is_frame = hasattr(data, "columns")  # a data frame, of which each seed draws a partition
    if isinstance(data, str | os.PathLike):
        require(isinstance(os.fspath(data), str), f"The path of a table must be a text; got {short_repr(data)}.")
        source = find_source(os.fspath(data), source_settings)
        first_partition, alphas = partitions_of({**owners_partition(source, division), **division})
        first_partition.require_effects(division)
    else:
        if is_frame:
            require(not fresh_data, "The splits of a data frame are the same for every seed: leave `fresh_data` out.")
            require(not isinstance(alpha, Iterable), "A data frame is compared at one alpha: give one number.")
            frame_settings = (
                source_settings | ({"partition": division.pop("kind")} if "kind" in division else {}) | division
            )
            data = [load(cast(Any, data), **{**frame_settings, "seed": number}) for number in seed_numbers]
            source_settings, division = {}, {}
        has_its_own = not (source_settings or division or fresh_data)
        require(has_its_own, "A Federation already has its data, clients and partition: leave those settings out.")
        source = cast(Source, InMemory.of(data, len(seed_numbers)))
        first_partition, alphas = partitions_of({"kind": "silos"})
    fairness_target = None if target is None else Target.parse(target)
    at_target = {} if fairness_target is None else lagrangians(fairness_target)
    defaults: tuple[AlgorithmEntry, ...] = ()
    if algorithms is None:
        defaults = (*entries_of(ALGORITHMS), *(entry_of(key, values) for key, values in at_target.items()))
    of_study = {
        "model": _recorded(shared.model),
        "entries": defaults if algorithms is None else entries_of(algorithms),
        "data": source,
        "partition": first_partition,
        "alphas": alphas,
        "seeds": seed_numbers,
        "fresh_data": fresh_data,
        "workers": workers,
        "checkpoint_every": checkpoint_every,
        "target": None if fairness_target is None else str(fairness_target),
        "repair": repair,
        "confidence": confidence,
        "scope": scope,
    }
    config = build(StudyConfig, {one.name: getattr(shared, one.name) for one in fields(shared)} | of_study, "study")
    optional = tuple(entry.key for entry in defaults)
    resuming: Existing = "resume" if resume else "refuse"
    free_rate = "lr" not in settings and (is_frame or isinstance(source, Table))
    if out is not None:
        return compute_study(
            config, Path(out), optional, resuming, on_round=on_round, progress=progress, free_rate=free_rate
        )
    require(not resume, "`resume` needs the folder of the study: give it as `out`.")
    folder = Path(tempfile.mkdtemp(prefix="ffalm-"))
    try:
        study = compute_study(config, folder, optional, on_round=on_round, progress=progress, free_rate=free_rate)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(study, shutil.rmtree, folder, ignore_errors=True)
    return study


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class OpenStudy:
    """A study that has been checked and whose folder this process holds, before its first run is computed."""

    config: StudyConfig
    spread: ExecutionPlan
    record: StudyRecord
    folder: Path
    left: list[RunPlan]  # the runs that the folder does not hold yet
    ray: str | None = None  # the address of a cluster to compute on

    def compute(self, on_round: Listener | None = None) -> Study:
        """Compute the runs that are left, and return the study in the folder."""

        def listener(plan: RunPlan, record: Record) -> None:
            if on_round is not None:
                on_round(plan, dict(record))  # a copy, since the history is kept

        if self.left and self.ray is not None and not self.spread.engine.spreads:
            cluster.run_on_cluster(self.config, self.folder, self.ray, listener, self.spread.engine.name)
        elif self.left:  # an engine that spreads by itself reads this variable
            os.environ.update({} if self.ray is None else {"RAY_ADDRESS": self.ray})
            workers.run_study(self.config, self.folder, self.spread, listener)
        return Study.load(self.folder)


@contextmanager
def begin(
    config: StudyConfig,
    out: Path | Callable[[], Path],
    optional: Collection[str] = (),
    existing: Existing = "refuse",
    command: str = "ffalm.compare(...)",
    ray: str | None = None,
    free_rate: bool = False,
) -> Iterator[OpenStudy]:
    """Check that a study is possible, then claim its folder and write its settings and `study.json` there.

    `out` is the folder, or a function that makes a new one. Algorithms that are `optional` are left out if they
    cannot take the data. With `free_rate` the learning rate of a study with a target is chosen by `choose_rate`.
    Nothing is written before the study is known to be possible.
    """
    if isinstance(out, Path):
        _begun(out, existing)
    if config.target is not None and config.scope != "federation" and not isinstance(config.data, InMemory):
        require(
            config.partition.kind == "silos" and config.partition.leave_out is None,
            "A target for sites needs the data to name the sites: name its owner column, and leave no site out.",
        )
    forget_changed_data()
    config, left_out = drop_incompatible(config, optional)
    config, notes = _with_rate(config, out) if free_rate and config.target is not None else (config, ())
    spread = plan_execution(config, _begun_by(config, out) if existing == "resume" else "")
    if ray is not None:
        cluster.check(ray)
    record = lay_out(config, spread, left_out, command, notes)
    folder = out if isinstance(out, Path) else out()
    with _claimed(folder, config, existing) as stored:
        if stored is not None:  # keep what was recorded at its start
            check_same(record, stored, folder)
            record = replace(record, command=stored.command, left_out=stored.left_out, answer_notes=stored.answer_notes)
        left = [plan for plan in plans(config) if finished(config, folder, plan) is None]
        write_atomic(folder / "config.toml", toml.dumps(config.to_plain()))
        write_record(record, folder)
        yield OpenStudy(config, spread, record, folder, left, ray)


def _with_rate(config: StudyConfig, folder: Path | Callable[[], Path]) -> tuple[StudyConfig, tuple[str, ...]]:
    """The study with the learning rate that it was started with, or that is chosen now, and the reason."""
    begun = isinstance(folder, Path) and (folder / "config.toml").exists()
    first = plans(config)[0]
    rate = None if begun else choose_rate(federation_of(config, first), config, first.seed)
    lr = parse(read(cast(Path, folder) / "config.toml")).training.lr if rate is None else rate.lr
    notes = () if rate is None or not rate.note else (rate.note,)
    return replace(config, training=replace(config.training, lr=lr)), notes


def _begun_by(config: StudyConfig, folder: Path | Callable[[], Path]) -> str:
    """The engine that "auto" chose when the study in this folder was started; empty if there is none."""
    begun = isinstance(folder, Path) and (folder / RECORD).exists() and config.engine == "auto"
    return read_record(cast(Path, folder)).engine if begun else ""


def compute_study(
    config: StudyConfig,
    out: Path,
    optional: Collection[str] = (),
    existing: Existing = "refuse",
    on_round: Listener | None = None,
    ray: str | None = None,
    progress: bool = False,
    free_rate: bool = False,
) -> Study:
    """Compute the runs that are missing from the folder, and return the study in it."""
    with usual_modes(), begin(config, out, optional, existing, ray=ray, free_rate=free_rate) as begun:
        if not progress:
            return begun.compute(on_round)
        line = ProgressLine(len(begun.left) * config.training.rounds)

        def tell(plan: RunPlan, record: Record) -> None:
            line(plan.title, record)
            if on_round is not None:
                on_round(plan, record)

        study = begun.compute(tell)
        line.close()
        return study


def new_folder(base: Path, name: str) -> Path:
    """Make a new folder; a number is added to a name that is taken, as by a study started in the same second."""
    make_folder(base)
    for folder in (base / (name if number == 1 else f"{name}-{number}") for number in count(1)):
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def make_folder(folder: Path) -> None:
    """Make a folder for results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"The folder {folder} cannot be made ({reason}): name another with --out.") from None


@contextmanager
def _claimed(folder: Path, config: StudyConfig, existing: Existing) -> Iterator[StudyRecord | None]:
    """Lock the folder while this process computes the study; yields the record of the study that it resumes."""
    make_folder(folder)
    with locked(folder, "study"):
        remove_leftovers(folder)
        resumed = _begun(folder, existing) and existing == "resume"
        if resumed:
            before = parse(read(folder / "config.toml"))
            require(
                replace(before, workers=None) == replace(config, workers=None),
                f"The folder {folder} was made with other settings: resume it without flags, or name another.",
            )
        yield read_record(folder) if resumed and (folder / RECORD).exists() else None


def _begun(folder: Path, existing: Existing) -> bool:
    """Whether there is a study in the folder; nothing is ever overwritten."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is a file: name a folder.")
    if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
        return False  # a study killed at its start leaves only hidden files
    require(existing != "refuse", f"The folder {folder} is not empty: resume it with --resume, or name another.")
    require(
        existing == "share" or (folder / "config.toml").exists(),
        f"The folder {folder} holds no study to resume: name another with --out.",
    )
    return True


def entries_of(given: Named | Sequence[Named] | Mapping[str, Named]) -> tuple[AlgorithmEntry, ...]:
    """The entries of a study for algorithms given by name or as objects, each with its own key."""
    named: list[tuple[str, Named]] = (
        list(given.items()) if isinstance(given, Mapping) else [("", one) for one in listed(given)]
    )
    entries: dict[str, AlgorithmEntry] = {}
    for name, one in named:
        algorithm, preset = default_algorithm(one) if isinstance(one, str) else (one, _preset_of(one))
        keys = (algorithm.name if number == 1 else f"{algorithm.name}-{number}" for number in count(1))
        key = name or next(key for key in keys if key not in entries)
        entries[key] = AlgorithmEntry(key, algorithm, preset)
    return tuple(entries.values())


def _preset_of(algorithm: Any) -> str | None:
    """The preset that an algorithm object equals, if any; files can name it only if its class is registered."""
    require(
        isinstance(algorithm, Algorithm) and algorithms().get(algorithm.name) is type(algorithm),
        "An algorithm of a study is a name or an object of a registered class (@ffalm.register); got "
        f"{short_repr(algorithm)}.",
    )
    cls = type(algorithm)
    return next((name for name, values in cls.presets().items() if cls(**values) == algorithm), None)


def _recorded(model: Model) -> Architecture:
    """A model that a configuration file can record, by its settings or at least by its name."""
    if isinstance(model, str):
        return architecture(model)
    if isinstance(model, (Pretrained, *ARCHITECTURES.values())):
        return cast(Architecture, model)
    made = model if hasattr(model, "build") and not isinstance(model, nn.Module) else own_model(model)
    return CustomModel(getattr(made, "__qualname__", repr(made)), made)
