"""Run folders with one file damaged: resumed, they give the same numbers or are refused, never other numbers."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from tests.fuzzing.outcomes import Hang, Outcome, limited, place_of

_SETTINGS = (
    *("--algorithms", "fedavg,ffalm", "--seeds", "1", "--rounds", "4", "--clients", "2", "--set", "data.rows=300"),
    *("--keep", "best", "--workers", "1", "--quiet", "--engine", "loop"),
)
_KILLED_AFTER = 6  # rounds, of 2 x 4: the first run is finished, the second has two checkpoints


class _Killed(BaseException):
    """The process ends here."""


@contextmanager
def _killed_after(rounds: int) -> Iterator[None]:
    from ffalm.studies.execution import _StoredRun

    left, add = [rounds], _StoredRun.add

    def counted(self: Any, place: int, done: Any) -> Any:
        if left[0] == 0:
            raise _Killed
        left[0] -= 1
        return add(self, place, done)

    with patch.object(_StoredRun, "add", counted):
        yield


def _command(*arguments: str) -> tuple[int, str]:
    from ffalm import cli

    said = io.StringIO()
    unwritten: Any = patch("ffalm.studies.results.Study.write_report", lambda *_: {})
    with limited(), unwritten, redirect_stdout(io.StringIO()), redirect_stderr(said):
        return cli.run(list(arguments)), said.getvalue()


def prepare(here: Path) -> dict[str, Any]:
    """A study that was killed in its second run, and the numbers that it must come to."""
    code, said = _command("compare", *_SETTINGS, "--out", str(here / "whole"))
    assert code == 0, said
    try:
        with _killed_after(_KILLED_AFTER):
            _command("compare", *_SETTINGS, "--out", str(here / "killed"))
    except _Killed:
        pass
    return numbers_of(here / "whole")


def numbers_of(study: Path) -> dict[str, Any]:
    """All that a study came to, except for how long it took."""
    found: dict[str, Any] = {}
    for result in sorted(study.glob("runs/*/result.json")):
        history = [json.loads(line) for line in (result.parent / "history.jsonl").read_text().splitlines()]
        records = [json.loads(result.read_text()), *history]
        kept = [
            {name: value for name, value in record.items() if name not in ("seconds", "finished")} for record in records
        ]
        found[result.parent.name] = kept, (result.parent / "model.safetensors").read_bytes()
    return found


def damage(draws: random.Random, study: Path) -> str:
    """Damage one file of a study, in one of the ways that disks and people do."""
    files = sorted(path for path in study.rglob("*") if path.is_file() and not path.name.startswith("."))
    path = draws.choice(files)
    content = path.read_bytes()
    place = draws.randrange(max(1, len(content)))
    how = draws.choice(("flip", "flip", "flip", "cut", "empty", "double", "replace", "remove", "of another run"))
    runs = sorted(run for run in study.glob("runs/*") if run not in path.parents)
    if how == "of another run" and path.is_relative_to(study / "runs") and runs:
        name = path.relative_to(study / "runs").parts[1:]
        (put := draws.choice(runs).joinpath(*name)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, put)
    elif how in ("remove", "of another run"):
        path.unlink()
    else:
        byte = (content or b"\0")[place] ^ 1 << draws.randrange(8)
        flipped = content[:place] + bytes([byte]) + content[place + 1 :]
        other = draws.choice(files).read_bytes()
        changed = {"flip": flipped, "cut": content[:place], "empty": b"", "double": content * 2, "replace": other}
        path.write_bytes(changed[how])
    return f"{how} {path.relative_to(study)} at {place}"


def _predictions(folder: Path) -> tuple[Any, ...]:
    """What the model in a folder says of a few new rows, and its card."""
    import ffalm

    model = ffalm.load_model(folder)
    rows = pd.DataFrame({"a": range(12), "sex": ["m", "f"] * 6})
    return model.predict_proba(rows).tolist(), model.predict(rows, "sex").tolist(), model.card()


def prepare_models(here: Path) -> dict[str, tuple[Any, ...]]:
    """Folders with a trained model: of a study, of its run, and one that was saved; and what their models predict."""
    from tests.fuzzing.commands import prepare_files, train

    import ffalm

    prepare_files(here)
    study = train(here)
    run = sorted((study / "runs").glob("*/result.json"))[0].parent
    ffalm.load_model(study).save(here / "saved")
    places = {"study": ".", "study/run": str(run.relative_to(study)), "saved": "."}
    return {name: (*_predictions(here / name.partition("/")[0] / place), place) for name, place in places.items()}


def run_model(number: int, seed: int, here: Path, expected: dict[str, tuple[Any, ...]]) -> tuple[Outcome, str]:
    """A damaged folder of a model gives the same predictions or is refused."""
    from ffalm import UserError

    draws = random.Random(f"{seed}-{number}")
    name = draws.choice(list(expected))
    *right, place = expected[name]
    copy = here / f"model-{number}"
    shutil.copytree(here / name.partition("/")[0], copy)
    case = f"{name}: {damage(draws, copy)}"
    try:
        with limited():
            found = _predictions(copy / place)
        same = list(found[:2]) == right[:2]
        return Outcome(same, "the same predictions" if same else "other predictions", "" if same else case), case
    except UserError as error:
        one = "\n" not in str(error)
        return Outcome(one, "model refused", "" if one else str(error)), case
    except Hang as error:
        return Outcome(False, "hang", place_of(error)), case
    except Exception as error:
        return Outcome(False, "traceback", place_of(error)), case
    finally:
        shutil.rmtree(copy)


def run(number: int, seed: int, here: Path, expected: dict[str, Any]) -> tuple[Outcome, str]:
    """One case by its number."""
    draws = random.Random(f"{seed}-{number}")
    study = here / f"case-{number}"
    shutil.copytree(here / "killed", study)
    case = damage(draws, study)
    try:
        code, said = _command("compare", "--out", str(study), "--resume", "--quiet")
        if code == 0:
            same = numbers_of(study) == expected
            named = "named" if "warning" in said else "same"
            return Outcome(same, named if same else "other numbers", "" if same else case), case
        lines = [line for line in said.splitlines() if "warning" not in line]
        fine = code == 2 and len(lines) == 1
        return Outcome(fine, "refused" if fine else f"exit code {code}", "" if fine else said[-300:]), case
    except Hang as error:
        return Outcome(False, "hang", place_of(error)), case
    except Exception as error:
        return Outcome(False, "traceback", place_of(error)), case
    finally:
        shutil.rmtree(study)
