"""A study in plain values: `study.json`, written before it runs, and with its runs everything that a report says."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffalm
from ffalm.errors import UserError, require
from ffalm.outcome import LeftOut, Outcome, StudyOutcome, StudyRecord
from ffalm.studies.checksums import digest, read_checked, with_checksum
from ffalm.studies.store import RunFolder
from ffalm.system.files import write_atomic

if TYPE_CHECKING:
    from ffalm.config import StudyConfig
    from ffalm.studies.execution import ExecutionPlan

RECORD = "study.json"
_ASCENT_WARNING = 0.5


def lay_out(
    config: StudyConfig,
    spread: ExecutionPlan,
    left_out: Sequence[LeftOut] = (),
    command: str = "",
    notes: tuple[str, ...] = (),
) -> StudyRecord:
    """Everything a report says about a study that is known before it runs."""
    import torch

    from ffalm.studies.grid import federation_of, plans, run_place
    from ffalm.trained_models.model_facts import task_facts

    grid = plans(config)
    federation = federation_of(config, grid[0])
    task = federation.task
    return StudyRecord(
        title=f"{' / '.join(entry.label for entry in config.entries)} on {task.name}",
        task=task_facts(task),
        choices=_choices(config, spread),
        clients=federation.summary(),
        runs=[run_place(config, plan) for plan in grid],
        group_names=task.group_names,
        excluded=task.excluded,
        favourable=task.favourable,
        duals_by_group=tuple(entry.label for entry in config.entries if entry.algorithm.duals_by_group),
        references=tuple(entry.label for entry in config.entries if entry.algorithm.trains_on != "clients"),
        data_notes=federation.notes,
        answer_notes=notes,
        left_out=tuple(left_out),
        keep=config.keep,
        delta=None if config.privacy is None else config.privacy.delta,
        target=config.target,
        repair=config.repair,
        confidence=config.confidence,
        scope=config.scope,
        versions={"ffalm": ffalm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        command=command,
        engine=spread.engine.name,
        fingerprints={
            "settings": digest(json.dumps(config.essence(), sort_keys=True, default=str)),
            "data": federation.fingerprint(),
        },
    )


def check_same(record: StudyRecord, before: StudyRecord, folder: Path) -> None:
    """Refuse to resume a study whose settings or data are not those that it was started with."""
    same_version = record.versions.get("ffalm") == before.versions.get("ffalm")
    reasons = {
        "settings": "the settings in config.toml have changed since the study was started: undo the change",
        "data": "its data has changed since the study was started: restore it",
    }
    for name, what in reasons.items():
        changed = before.fingerprints.get(name, "") not in ("", record.fingerprints[name])
        require(
            not changed or (name == "settings" and not same_version),
            f"The study in {folder} cannot be resumed, since {what}, or start another with --out.",
        )


def write_record(record: StudyRecord, folder: Path) -> None:
    """Write `study.json`."""
    write_atomic(folder / RECORD, with_checksum(dataclasses.asdict(record)))


def read_record(folder: Path) -> StudyRecord:
    """The `study.json` of a folder."""
    try:
        return StudyRecord.from_plain(read_checked(folder / RECORD))
    except FileNotFoundError:
        refuse_several(folder)
        raise UserError(
            f"There is no {RECORD} in {folder}: name the folder of a study, a run or a federation."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"The file {folder / RECORD} is damaged ({error}): delete it and resume the study to write it again."
        ) from None


def refuse_several(folder: Path) -> None:
    """Refuse a folder of studies, such as `ffalm-results` or that of `--leave-out each`, by naming one of them."""
    inner = sorted(record.parent for record in folder.glob(f"*/{RECORD}"))
    if inner:
        raise UserError(f"The folder {folder} holds studies: name one of them, such as {inner[0]}.")


def read_study(folder: Path) -> tuple[StudyRecord, list[Outcome]]:
    """A study's record and its finished runs, from its folder alone.

    The folder may also be that of one run of a study, or a federation's, whose run lies in `run/`.
    """
    if not (folder / RECORD).exists():
        if (folder / "run" / RECORD).exists():
            return dataclasses.replace(read_record(folder / "run"), runs=["run"]), _finished(folder, ["run"])
        study = folder.absolute().parent.parent
        if (study / RECORD).exists() and f"runs/{folder.name}" in read_record(study).runs:
            return dataclasses.replace(read_record(study), runs=["."]), _finished(folder, ["."])
    record = read_record(folder)
    return record, _finished(folder, record.runs)


def _finished(folder: Path, places: Sequence[str]) -> list[Outcome]:
    outcomes = ((place, RunFolder(folder / place).outcome()) for place in places)
    return [dataclasses.replace(outcome, place=place) for place, outcome in outcomes if outcome is not None]


def describe(record: StudyRecord, outcomes: Sequence[Outcome]) -> StudyOutcome:
    """Everything a report says about a study with these runs."""
    return StudyOutcome(
        **vars(record),
        outcomes=list(outcomes),
        notes=[
            *(f"Left out: {one.reason}" for one in record.left_out),
            *record.data_notes,
            *_warnings(outcomes),
            *_kept(record, outcomes),
            *_privacy(record, outcomes),
        ],
    )


def _choices(config: StudyConfig, spread: ExecutionPlan) -> dict[str, str]:
    """Every setting, in reading order, with the reason for each engine."""
    settings = config.to_plain()
    chosen: dict[str, str] = {}
    for section in ("data", "partition", "model", "training", "privacy"):
        for name, value in settings.get(section, {}).items():
            if section == "partition" and name in config.partition.without_effect:
                continue
            chosen[f"{section}: {name}"] = _text(value)
    chosen["model kept"] = "of the last round" if config.keep == "last" else "of the round best on validation"
    chosen["seeds"] = _text(settings["seeds"])
    for entry in config.entries:
        values = dataclasses.asdict(entry.algorithm)
        chosen[entry.label] = ", ".join(f"{name} {_text(value)}" for name, value in values.items()) or "no settings"
    chosen["engine"] = spread.engines
    return chosen


def _warnings(outcomes: Sequence[Outcome]) -> list[str]:
    """Runs that diverged or are degenerate, and runs in which many steps increased the loss of some rows."""
    notes = [f"{outcome.diverged} (seed {outcome.seed})" for outcome in outcomes if outcome.diverged]
    notes += [
        f"{run.label} is degenerate with seed {run.seed}{'' if run.alpha is None else f' and alpha {run.alpha:g}'}, so "
        f"its gaps are no result: {run.degenerate}."
        for run in outcomes
        if run.degenerate
    ]
    for label, runs in _by_label(outcomes).items():
        shares = [max((one.get("negative_weight_share", 0.0) for one in run.history), default=0.0) for run in runs]
        high = [share for share in shares if share > _ASCENT_WARNING]
        if high:
            notes.append(
                f"{label}: in {len(high)} of {len(shares)} runs there was a round in which most local steps (up to "
                f"{100 * max(high):.0f} %) gave some row a negative weight: training pushed its loss up to meet the "
                "constraint."
            )
    return notes


def _kept(record: StudyRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """Which rounds' models were scored, if not those of the last rounds."""
    if record.keep == "last":
        return []
    return [
        f"{label}: the model scored is that of {span([run.kept or len(run.history) for run in runs])} of "
        f"{len(runs[0].history)}, the best on the validation part."
        for label, runs in _by_label([outcome for outcome in outcomes if outcome.diverged is None]).items()
    ]


def span(rounds: Sequence[int]) -> str:
    """The rounds from the first to the last, in words."""
    low, high = min(rounds), max(rounds)
    return f"round {low}" if low == high else f"rounds {low} to {high}"


def _privacy(record: StudyRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """The privacy guarantee of each algorithm's runs, and what it does not cover."""
    if record.delta is None:
        return []
    from ffalm.privacy import describe_guarantee

    lines = [
        f"{label}: {describe_guarantee(max(run.history[-1]['epsilon'] for run in runs), record.delta)}"
        for label, runs in _by_label(outcomes).items()
    ]
    covered = (
        "Epsilon is for each run by itself and for replacing all rows of one client. Not covered: how many rows of "
        "each label and group a client has, who took part, and scores on held-out rows and on each client's own rows. "
        "The noise of a simulation comes from its seed, so it shows the cost of privacy but protects no one."
    )
    return [*lines, covered]


def _by_label(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The runs of each algorithm, in their order."""
    runs_of: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        runs_of.setdefault(outcome.label, []).append(outcome)
    return runs_of


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
