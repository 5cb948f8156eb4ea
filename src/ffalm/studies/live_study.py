"""A study while it runs: its finished runs, the rounds of the others so far, and a page of both.

Only files are read, so that any process may look at a study that another computes.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ffalm.config import parse, read
from ffalm.errors import UserError, require
from ffalm.outcome import Outcome, StudyOutcome
from ffalm.report.curves import charts
from ffalm.report.page import render
from ffalm.studies.describe import RECORD, refuse_several, span
from ffalm.studies.grid import plans, run_place
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder
from ffalm.system.files import read_json

_STATUS = "status.json"
_WATCHED = ("study.json", "history.jsonl", "result.json", _STATUS)


def fingerprint(folder: Path) -> list[tuple[str, int, int]]:
    """Sizes and times of the files that a round or a run changes; if they are the same, so is the page."""
    places = [folder, folder / "run", *sorted(folder.glob("runs/*"))]
    files = [place / name for place in places for name in _WATCHED]
    return [(str(file), *_state(file)) for file in files]


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def live_page(folder: Path) -> tuple[str, bool]:
    """The current page of a study, and whether the study is complete."""
    finished, running, total = _read(folder)
    complete = not running and len(finished.outcomes) == total
    progress = "" if complete else _with_status(folder, _progress(finished, running, total))
    both = replace(finished, outcomes=[*finished.outcomes, *running])
    # the curves have every round so far, the tables only finished runs
    return render(replace(finished, progress=progress), charts(both)), complete


def _read(folder: Path) -> tuple[StudyOutcome, list[Outcome], int]:
    """The finished runs, the unfinished ones, and how many runs there will be."""
    if not (folder / RECORD).exists() and (folder / "run" / "history.jsonl").exists():
        folder = folder / "run"
    if (folder / RECORD).exists():
        study = Study.load(folder)
        done, total = {run.place for run in study.results}, len(study.record.runs)
        return study.outcome, [] if len(done) == total else _running(folder, done), total
    refuse_several(folder)
    begun = (folder / "history.jsonl").exists()
    require(
        begun or (folder / "federation.toml").exists() or (folder / "config.toml").exists(),
        f"There is nothing to watch in {folder}: name the folder of a study, a run or a federation.",
    )
    place = folder.absolute()
    title = place.parent.name if place.name == "run" else place.name
    return StudyOutcome(f"Training in {title}", {}, {}, [], []), [_federated(folder)] if begun else [], 1


def _running(folder: Path, done: set[str]) -> list[Outcome]:
    """The unfinished runs of a study that have started."""
    config = parse(read(folder / "config.toml"))
    found = []
    for plan in plans(config):
        place = run_place(config, plan)
        history = [] if place in done else RunFolder(folder / place).history()
        if history:
            alpha = plan.alpha if plan.skewed else None
            seconds = math.fsum(record["seconds"] for record in history)
            name = plan.entry.algorithm.name
            found.append(Outcome(plan.entry.label, name, plan.seed, alpha, {}, {}, history, seconds, place=place))
    return found


def _federated(folder: Path) -> Outcome:
    """The unfinished run of a federation, which has no record yet."""
    try:
        settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        name = str(settings["algorithm"]["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"The settings of the run in {folder} cannot be read yet ({error!r}).") from None
    history = RunFolder(folder).history()
    return Outcome(name, name, 0, None, {}, {}, history, math.fsum(record["seconds"] for record in history))


def _with_status(folder: Path, progress: str) -> str:
    """The progress with what the coordinator of a federation waits for; or why its run has stopped."""
    try:
        found = read_json((folder if folder.name == "run" else folder / "run") / _STATUS)
        state, message = str(found["state"]), str(found["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return progress
    return {"waiting": f"{progress} {message}", "stopped": f"The run has stopped. {message}"}.get(state, progress)


def _progress(finished: StudyOutcome, running: Sequence[Outcome], total: int) -> str:
    """How far a study is, in a sentence."""
    if not running and not finished.outcomes:
        return "No round is finished yet: this page shows each round as soon as it ends."
    rounds = [len(run.history) for run in running]
    if total == 1:
        return f"Still running: round {max(rounds)} finished. The tables follow when all rounds are done."
    progress = f"Still running: {len(finished.outcomes)} of {total} runs finished"
    if rounds:
        progress += f", {len(rounds)} in {span(rounds)}"
    return f"{progress}. The curves show every round so far, the tables only finished runs."
