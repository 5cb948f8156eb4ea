"""The surfaces that are fuzzed, each with files of its own process."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.fuzzing import commands
from tests.fuzzing.outcomes import Findings, Outcome

_MEMORY = 12 * 2**30
#: Of a run over all surfaces, the share of each.
SHARES = {"commands": 0.2, "calls": 0.2, "tables": 0.25, "messages": 0.34, "folders": 0.005, "models": 0.005}
Case = Callable[[int, int, Path], tuple[Outcome, str]]


@cache
def _here() -> Path:
    """This process' folder of files, in which it works from now on."""
    here = Path(tempfile.mkdtemp(prefix="ffalm-fuzzing-"))
    atexit.register(shutil.rmtree, here, ignore_errors=True)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    commands.prepare_files(here)
    os.chdir(here / "folder")
    return here


@cache
def _surface(name: str) -> Case:
    here = _here()
    if name == "calls":
        from tests.fuzzing import calls

        federation = calls.small_federation()
        return lambda number, seed, here: calls.run(number, seed, here, federation)
    if name == "folders":
        from tests.fuzzing import folders

        expected = folders.prepare(here)
        return lambda number, seed, here: folders.run(number, seed, here, expected)
    if name == "models":
        from tests.fuzzing import folders

        (own := here / "models").mkdir()  # other surfaces of this process save models too
        predicted = folders.prepare_models(own)
        return lambda number, seed, here: folders.run_model(number, seed, own, predicted)
    if name == "messages":
        from tests.fuzzing import messages

        made = messages.prepare(here)
        return lambda number, seed, here: messages.run(number, seed, made)
    if name == "tables":
        from tests.fuzzing import tables

        return tables.run
    return commands.run


def cases(surface: str, numbers: range, seed: int) -> Findings:
    """What came of some cases of a surface."""
    found, one = Findings(), _surface(surface)
    for number in numbers:
        outcome, case = one(number, seed, _here())
        found.add(outcome, f"{surface} #{number} {case}")
    return found
