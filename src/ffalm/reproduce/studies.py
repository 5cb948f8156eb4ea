"""Runs the studies behind a table, each run once: all tables that need a run find it in the same folder.

OUT/utkface/runs/ffalm-paper-alpha-0.3-seed-0      the runs of a data set
OUT/utkface-partition-plain/runs/...               the same with another answer to an open question
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffalm.config import StudyConfig, parse, read
from ffalm.errors import require
from ffalm.grid import RunPlan, plans
from ffalm.outcome import StudyOutcome
from ffalm.reproduce.request import Entry, Request

#: Computes what a folder does not hold yet of a study, and describes all of it.
Runner = Callable[[StudyConfig, Path], StudyOutcome]

#: Settings that change how fast or where a run is computed, and its numbers only by rounding.
OF_THE_MACHINE = ("engine", "device", "channels_last", "compiled", "checkpoint_every", "workers")


def carried_out(
    request: Request, out: Path, run: Runner, data: str, alphas: Sequence[float], entries: Sequence[Entry]
) -> StudyOutcome:
    """The study of these algorithms on a data set, with readers' names for them."""
    config = request.config(data, alphas, entries)
    folder = out / request.folder_name(data)
    grid = plans(config)
    for plan in grid:
        _check(config, folder, plan)
    alone = len(grid) == 1  # a study of one run lives in that run's folder; put it where more seeds would look for it
    study = run(config, folder / "runs" / grid[0].folder_name if alone else folder)
    return _renamed(study, {one.label: entry.label for one, entry in zip(config.entries, entries, strict=True)})


def _check(config: StudyConfig, folder: Path, plan: RunPlan) -> None:
    """A run that exists already must have the settings that are asked for now."""
    stored = folder / "runs" / plan.folder_name / "config.toml"
    if not stored.exists():
        return
    asked = replace(config, entries=(plan.entry,), alphas=(plan.alpha,), seeds=(plan.seed,))
    require(
        _comparable(parse(read(stored))) == _comparable(asked),
        f"The run {stored.parent} was made with other settings: name another folder with --out.",
    )


def _comparable(config: StudyConfig) -> dict[str, Any]:
    """The settings that decide a run's numbers, hence not the folder of the data."""
    settings = {name: value for name, value in config.to_plain().items() if name not in OF_THE_MACHINE}
    settings["data"] = {name: value for name, value in settings["data"].items() if name != "root"}
    settings["algorithms"] = {
        key: {name: value for name, value in section.items() if name != "preset"}
        for key, section in settings["algorithms"].items()
    }
    return settings


def _renamed(study: StudyOutcome, names: dict[str, str]) -> StudyOutcome:
    """The study with algorithms called as readers call them, in the table, the settings and the notes."""

    def told(note: str) -> str:
        label, colon, rest = note.partition(":")
        return f"{names[label]}{colon}{rest}" if colon and label in names else note

    return replace(
        study,
        outcomes=[replace(outcome, label=names.get(outcome.label, outcome.label)) for outcome in study.outcomes],
        choices={names.get(name, name): value for name, value in study.choices.items()},
        notes=[told(note) for note in study.notes],
    )
