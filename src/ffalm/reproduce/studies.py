"""Runs the studies behind a table, each run once: all tables that need a run find it in the same folder.

OUT/utkface/runs/ffalm-paper-alpha-0.3-seed-0      the runs of a data set
OUT/utkface-partition-plain/runs/...               the same with another answer to an open question
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffalm.config import StudyConfig
from ffalm.outcome import StudyOutcome
from ffalm.reproduce.request import Entry, Request
from ffalm.studies.describe import describe
from ffalm.studies.grid import check_owner, plans
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder

#: Computes what a folder does not hold yet of a study, and returns all of it.
Runner = Callable[[StudyConfig, Path], Study]


def computed_study(
    request: Request, out: Path, run: Runner, data: str, alphas: Sequence[float], entries: Sequence[Entry]
) -> StudyOutcome:
    """The study of these algorithms on a data set, under the names that tables show."""
    config = request.config(data, alphas, entries)
    folder = out / request.folder_name(data)
    grid = plans(config)
    for plan in grid:  # before anything is computed
        check_owner(config, RunFolder(folder / "runs" / plan.folder_name), plan)
    alone = len(grid) == 1  # a study of one run lies in that run's folder: the one where a larger study looks for it
    study = run(config, folder / "runs" / grid[0].folder_name if alone else folder)
    return renamed(study, {one.label: entry.label for one, entry in zip(config.entries, entries, strict=True)})


def renamed(study: Study, names: Mapping[str, str]) -> StudyOutcome:
    """The study with other labels for its algorithms, in the table, the settings and the notes."""
    record = replace(
        study.record,
        choices={names.get(name, name): value for name, value in study.record.choices.items()},
        duals_by_group=tuple(names.get(label, label) for label in study.record.duals_by_group),
    )
    return describe(record, [replace(one, label=names.get(one.label, one.label)) for one in study.results])
