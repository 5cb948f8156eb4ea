from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.board_runs import BoardResult, run_board
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.outcome import Outcome
from ffalm.studies.results import Study

BOARD = """
title = "Two metrics, and methods whose models are degenerate or diverge"
targets = ["dpd <= 0.05", "dpd <= 0.2", "eod <= 0.05"]
budget = 2
[study]
training = { rounds = 8, lr = 0.3 }
[cells.people]
data = { source = "census", rows = 2000 }
[methods.fedavg]
[methods.ffalm]
settings = [{}, { penalty = 5.0 }]
[methods.fpfl]
[methods.ours]
algorithm = "fedavg"
repair = "groups"
[methods.untrained]
algorithm = "fedavg"
training = { lr = 1e-9 }
[methods.exploding]
algorithm = "fedavg"
training = { lr = 1e30 }
"""
SEEDS = (0, 1)
Point = tuple[float, float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    (folder / "board.toml").write_text(BOARD)
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> BoardResult:
    changes = {"seeds": list(SEEDS), "workers": 1, "engine": "stacked"}
    return run_board(Board.load(folder / "board.toml"), folder / "out", changes)


@pytest.fixture(scope="module")
def runs(result: BoardResult, folder: Path) -> list[Outcome]:
    """The runs of the training that all methods but two share."""
    found = Study.load(folder / "out" / "people").results
    assert not any(run.degenerate or run.diverged for run in found)
    return found


def one_of(result: BoardResult, method: str, target: str, seed: int = 0) -> MethodChoice:
    (found,) = [one for one in result.choices if (one.method, one.target, one.seed) == (method, target, seed)]
    return found


def dominated(points: list[Point], widest: float, lowest: float) -> float:
    """The share of the box from (widest, lowest) to (0, 1) in which some point has a smaller gap and more accuracy."""
    gaps = sorted({0.0, widest, *(min(gap, widest) for gap, _ in points)})
    heights = [
        max([lowest, *(accuracy for gap, accuracy in points if gap <= left)]) - lowest for left, _ in pairwise(gaps)
    ]
    area = sum((right - left) * height for (left, right), height in zip(pairwise(gaps), heights, strict=True))
    return area / (widest * (1 - lowest))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("metric", "target"), [("dpd", "dpd <= 0.05"), ("eod", "eod <= 0.05")])
def test_the_volume_of_a_seed_is_what_the_methods_sound_models_dominate_of_the_box_of_all_sound_runs(
    result: BoardResult, runs: list[Outcome], seed: int, metric: str, target: str
) -> None:
    of_seed = [run for run in runs if run.seed == seed]
    widest, lowest = max(run.test[metric] for run in of_seed), of_seed[0].majority
    for method in ("fedavg", "ffalm", "fpfl"):
        own = [(run.test[metric], run.test["accuracy"]) for run in of_seed if run.algorithm == method]
        assert len(own) == (2 if method == "ffalm" else 1)
        expected = dominated(own, widest, lowest)
        assert one_of(result, method, target, seed).hypervolume == pytest.approx(expected)
    assert any(one_of(result, method, target, seed).hypervolume > 0 for method in ("fedavg", "ffalm", "fpfl"))


def test_thresholds_add_their_models_to_those_as_trained(result: BoardResult, runs: list[Outcome]) -> None:
    of_seed = [run for run in runs if run.seed == 0]
    (trained,) = [run for run in of_seed if run.label == "FedAvg"]
    chosen = [one_of(result, "ours", target) for target in ("dpd <= 0.05", "dpd <= 0.2")]
    points = [(trained.test["dpd"], trained.test["accuracy"]), *((one.gap, one.accuracy) for one in chosen)]
    expected = dominated(points, max(run.test["dpd"] for run in of_seed), trained.majority)
    assert [one.hypervolume for one in chosen] == pytest.approx([expected, expected])
    assert expected > one_of(result, "fedavg", "dpd <= 0.05").hypervolume


def test_a_choice_names_its_run_and_the_thresholds_if_it_has_any(result: BoardResult) -> None:
    assert one_of(result, "fedavg", "dpd <= 0.05").chosen == "FedAvg"
    assert one_of(result, "ours", "dpd <= 0.05").chosen.startswith("FedAvg (")


def test_the_gap_is_that_of_the_bounds_own_metric(result: BoardResult, runs: list[Outcome]) -> None:
    (trained,) = [run for run in runs if run.seed == 0 and run.label == "FedAvg"]
    assert one_of(result, "fedavg", "dpd <= 0.05").gap == pytest.approx(trained.test["dpd"])
    assert one_of(result, "fedavg", "eod <= 0.05").gap == pytest.approx(trained.test["eod"])
    assert trained.test["dpd"] != pytest.approx(trained.test["eod"])


def test_a_degenerate_model_dominates_nothing_and_is_named(result: BoardResult) -> None:
    choice = one_of(result, "untrained", "dpd <= 0.05")
    assert choice.degenerate and choice.hypervolume == 0


def test_a_method_whose_runs_all_diverged_has_no_metrics(result: BoardResult) -> None:
    choice = one_of(result, "exploding", "dpd <= 0.05")
    assert math.isnan(choice.accuracy) and math.isnan(choice.gap)
    assert (choice.held, choice.chosen, choice.hypervolume) == (False, "", 0.0)
