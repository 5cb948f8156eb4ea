"""Run a fuzzer at length: `python -m tests.fuzzing commands --cases 5000 --seed 1`."""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzzing import commands
from tests.fuzzing.outcomes import Findings, Outcome

_MEMORY = 12 * 2**30
Case = Callable[[int, int, Path], tuple[Outcome, str]]


def _calls() -> Case:
    from tests.fuzzing import calls

    federation = calls.small_federation()
    return lambda number, seed, here: calls.run(number, seed, here, federation)


def _folders(here: Path) -> Case:
    from tests.fuzzing import folders

    expected = folders.prepare(here)
    return lambda number, seed, here: folders.run(number, seed, here, expected)


def _surface(name: str, here: Path) -> Case:
    if name == "tables":
        from tests.fuzzing import tables

        return tables.run
    return commands.run if name == "commands" else _calls() if name == "calls" else _folders(here)


def main() -> None:
    """Draw cases, run them, print what came of them; the exit code is 1 where there was a bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("surface", choices=["commands", "calls", "tables", "folders"])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case to repeat")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    findings = Findings()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        commands.prepare_files(here)
        os.chdir(here / "folder")
        one = _surface(asked.surface, here)
        for number in [asked.only] if asked.only is not None else range(asked.cases):
            outcome, case = one(number, asked.seed, here)
            findings.add(outcome, f"#{number} {case}")
    print(findings.text())
    raise SystemExit(bool(findings.bugs))


if __name__ == "__main__":
    main()
