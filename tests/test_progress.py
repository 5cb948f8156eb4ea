"""Progress of rounds: the time left, and the line that Python shows."""

from __future__ import annotations

import numpy as np
import pytest

import ffalm
from ffalm.progress import ProgressLine, RemainingTime


def test_the_time_left_follows_the_pace_of_rounds_and_not_the_start_of_processes() -> None:
    remaining = RemainingTime(10)
    assert remaining.seconds("run", 1, 60.0) is None
    assert remaining.seconds("run", 2, 62.0) == 2.0 * 8
    assert remaining.seconds("run", 3, 64.0) == 2.0 * 7


def test_first_rounds_that_come_together_do_not_count_as_fast() -> None:
    remaining = RemainingTime(40)
    for run in range(4):
        assert remaining.seconds(run, 1, 100.0) is None
    left = [remaining.seconds(run, 2, 102.0) for run in range(4)]
    assert left[-1] == 2.0 * 32 / 4
    assert all(one is not None and one >= left[-1] for one in left)


def test_rounds_that_a_resumed_run_has_behind_it_are_not_left() -> None:
    remaining = RemainingTime(20)
    assert remaining.seconds("one", 6, 10.0) is None
    assert remaining.seconds("one", 7, 11.0) == 13.0
    assert remaining.seconds("other", 9, 12.0) == 2.0 * 4 / 2


def test_a_thousand_rounds_are_one_line_rewritten_a_few_times(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(1000)
    for number in range(1, 1001):
        line("FedAvg, seed 0", {"round": number, "accuracy": 0.5})
    line.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.count("\r") < 100
    assert "1000/1000 rounds; FedAvg, seed 0: round 1000, accuracy 50.0 %, about 0 s left" in said


def test_python_shows_progress_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    part = (x, (x[:, 0] > 0).astype(int), np.arange(40) % 2)
    federation = ffalm.Federation.from_arrays([part, part], part, part)
    ffalm.simulate("fedavg", federation, seed=[0, 1], rounds=2, model="linear", progress=True)
    assert "4/4 rounds; FedAvg, seed 1: round 2" in capsys.readouterr().err
    ffalm.compare(federation, "fedavg", seeds=1, rounds=2, model="linear", target=None, progress=True)
    assert "2/2 rounds; FedAvg" in capsys.readouterr().err
    ffalm.simulate("fedavg", federation, rounds=1, model="linear")
    assert capsys.readouterr().err == ""
