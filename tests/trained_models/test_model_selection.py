"""Which round's model is kept, and that it is the model which that round had."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffalm
from ffalm.config import parse
from ffalm.engines import Round, Snapshot
from ffalm.errors import UserError
from ffalm.run_settings import Keep
from ffalm.studies.describe import describe, lay_out
from ffalm.studies.execution import execute, plan_execution
from ffalm.studies.grid import plans, run_folder
from ffalm.trained_models.model_selection import ModelSelection

#: A study that goes up and down, so that the best round is neither the first nor the last.
STUDY: dict[str, Any] = {
    "seeds": [0, 1],
    "keep": "best",
    "device": "cpu",
    "workers": 1,
    "data": {"source": "census", "rows": 400},
    "partition": {"clients": 3, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 8, "lr": 0.8, "batch_size": 16},
    "algorithms": {"ffalm": {"preset": "safe"}},
}


def done(round: int, accuracy: float, diverged: str | None = None) -> Round:
    return Round({"round": round, "accuracy": accuracy}, Snapshot(round, {}, {}), diverged)


@pytest.mark.parametrize(
    ("rule", "accuracies", "kept"),
    [
        ("last", [0.5, 0.9, 0.7], 3),
        ("best", [0.5, 0.9, 0.7], 2),
        ("best", [0.5, 0.9, 0.9], 2),
        ("best", [math.nan, 0.4], 2),
        ("best", [0.3, math.nan], 1),
    ],
)
def test_the_best_round_is_the_first_of_the_most_accurate(rule: Keep, accuracies: list[float], kept: int) -> None:
    selection = ModelSelection(rule)
    for number, accuracy in enumerate(accuracies, 1):
        selection.add(done(number, accuracy))
    assert selection.final().round == kept


def test_a_run_that_diverged_is_what_it_came_to() -> None:
    selection = ModelSelection("best")
    selection.add(done(1, 0.9))
    selection.add(done(2, math.nan, "lost"))
    assert selection.final().round == 2


def test_a_run_that_goes_on_knows_what_it_had_to_beat() -> None:
    selection = ModelSelection("best")
    selection.resume(Snapshot(1, {}, {}), [{"round": 1, "accuracy": 0.8}, {"round": 2, "accuracy": 0.5}])
    selection.add(done(3, 0.7))
    assert selection.final().round == 1
    selection.add(done(4, 0.81))
    assert selection.final().round == 4


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_kept_model_is_that_of_a_run_which_ended_there(engine: str) -> None:
    federation = ffalm.load("census", rows=400, clients=3, alpha=0.3, seed=0)
    common: dict[str, Any] = {"engine": engine, "device": "cpu", "threads": 1, "lr": 0.8, "seed": [0, 1]}
    best = ffalm.simulate("ffalm", federation, rounds=8, keep="best", **common)
    assert any(one.kept is not None for one in best)
    for place, one in enumerate(best):
        accuracies = [record["accuracy"] for record in one.history]
        top = int(np.argmax(accuracies)) + 1
        assert len(one.history) == 8
        assert (one.kept or 8) == top
        ended = ffalm.simulate("ffalm", federation, rounds=top, **common)[place]
        assert ended.kept is None
        assert ended.test == pytest.approx(one.test, rel=0, abs=0, nan_ok=True)
        assert ended.state["dual"] == one.state["dual"]
        assert all(torch.equal(ended.state_dict[name], value) for name, value in one.state_dict.items())


def test_the_best_round_needs_something_to_judge_it_by() -> None:
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(20, 3)), np.tile([0, 1], 10), np.tile([0, 0, 1, 1], 5)
    federation = ffalm.Federation.from_arrays([rows, rows], test=rows)
    with pytest.raises(UserError, match="has no validation part"):
        ffalm.simulate("fedavg", federation, model="linear", rounds=1, keep="best")
    with pytest.raises(UserError, match="must be one of last, best; got 'first'"):
        ffalm.simulate("fedavg", federation, model="linear", rounds=1, keep="first")  # type: ignore[call-overload]


class Stopped(BaseException):
    """The process ends here."""


def carried_out(folder: Path, stop_at: int | None = None) -> list[tuple[Any, ...]]:
    """What the runs came to; stopped once on the way, after a number of rounds of both runs together."""
    config = parse(STUDY)
    spread = plan_execution(config)
    seen = 0

    def listener(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_at:
            raise Stopped

    def run() -> None:
        for task in spread.tasks:
            execute(config, folder, task, spread, listener, "cpu")

    if stop_at is not None:
        with pytest.raises(Stopped):
            run()
    run()
    found = []
    for plan in plans(config):
        store = run_folder(config, folder, plan)
        outcome = store.outcome()
        assert outcome is not None
        found.append((outcome.kept, outcome.test, (store.path / "model.safetensors").read_bytes()))
    return found


def test_stopped_anywhere_and_gone_on_a_study_keeps_the_same_models(tmp_path: Path) -> None:
    whole = carried_out(tmp_path / "whole")
    assert any(kept is not None for kept, _, _ in whole)
    for number in (1, 2, 5, 8, 9, 13, 15, 16):
        assert carried_out(tmp_path / str(number), number) == whole


def test_the_report_says_which_rounds_were_kept(tmp_path: Path) -> None:
    carried_out(tmp_path)
    config = parse(STUDY)
    outcomes = [run_folder(config, tmp_path, plan).outcome() for plan in plans(config)]
    told = describe(lay_out(config, plan_execution(config)), [one for one in outcomes if one is not None])
    rounds = [one.kept or 8 for one in outcomes if one is not None]
    assert told.choices["model kept"] == "of the round best on validation"
    (note,) = [note for note in told.notes if "the best on the validation part" in note]
    assert note.startswith("FFALM (safe): ")
    assert f"{min(rounds)}" in note
    assert f"{max(rounds)} of 8," in note
