"""A small table of a user's own, and a way to run the command line in this process or in a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffalm.cli import run

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def loans(tmp_path: Path) -> Path:
    """400 loans: paid or not, by sex, at three branches."""
    draws = np.random.default_rng(0)
    sex = draws.integers(0, 2, 400)
    income = draws.normal(3 + 0.5 * sex, 1)
    table = pd.DataFrame(
        {
            "income": income.round(3),
            "purpose": draws.choice(["car", "home", "study"], 400),
            "sex": np.where(sex, "m", "f"),
            "branch": draws.choice(["north", "south", "west"], 400),
            "paid": np.where(income + draws.normal(0, 1, 400) > 3, "yes", "no"),
        }
    )
    path = tmp_path / "loans.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def flags(loans: Path) -> list[str]:
    """Settings under which a study takes a second."""
    mine = ["--data", str(loans), "--label", "paid", "--group", "sex", "--favourable", "yes"]
    return [*mine, "--clients", "3", "--rounds", "4", "--batch-size", "32", "--workers", "1", "--quiet"]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line; gives its exit code, output and errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command line as a real process, which heeds Ctrl-C even where the tests run in the background."""
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    source = Path(__file__).parents[2] / "src"
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(source), *filter(None, inherited)])  # an empty one is the working directory
    return subprocess.Popen(
        [sys.executable, "-c", f"{heeding}; from ffalm.cli import main; main()", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
