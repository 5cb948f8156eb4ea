from __future__ import annotations

from pathlib import Path

import pytest
from tests.leaderboard.test_board import SMALL

from ffalm.cli import run
from ffalm.leaderboard.board import Board, Cell
from ffalm.leaderboard.board_runs import BoardResult, run_board
from ffalm.studies.results import Study

CHANGES = {"seeds": [0, 1], "workers": 1, "engine": "stacked"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    (folder / "board.toml").write_text(SMALL)
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> BoardResult:
    return run_board(Board.load(folder / "board.toml"), folder / "out", CHANGES)


def test_every_method_chooses_once_a_seed_and_bound(result: BoardResult) -> None:
    assert [(one.method, one.seed) for one in result.choices] == [
        (method, seed) for seed in (0, 1) for method in ("fedavg", "ffalm", "ours")
    ]


def test_a_method_without_a_choice_has_the_test_metrics_of_its_run(result: BoardResult, folder: Path) -> None:
    study = Study.load(folder / "out" / "people")
    test = {run.seed: run.test for run in study.results if run.label == "FedAvg"}
    own = [one for one in result.choices if one.method == "fedavg"]
    assert [one.accuracy for one in own] == [test[0]["accuracy"], test[1]["accuracy"]]
    assert [one.gap for one in own] == pytest.approx([test[0]["dpd"], test[1]["dpd"]])
    assert [one.held for one in own] == [one.gap <= 0.05 for one in own]


def test_nothing_is_trained_twice(result: BoardResult, folder: Path) -> None:
    stamps = {file: file.stat().st_mtime_ns for file in (folder / "out").rglob("result.json")}
    again = run_board(Board.load(folder / "board.toml"), folder / "out", CHANGES)
    assert again == result
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    assert len(stamps) == 5 * 2


def test_cells_whose_files_are_not_named_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    file.write_text(
        SMALL.replace('source = "census", rows = 2000', 'source = "adult"') + "[cells.made]\ndata = {rows = 2000}"
    )
    result = run_board(Board.load(file, methods=["fedavg"]), tmp_path / "out", CHANGES)
    assert result.left_out == ["people: give the folder with the files of adult with --root."]
    assert {one.cell for one in result.choices} == {"made"}


def test_the_command_writes_the_page_and_its_data(
    result: BoardResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(folder / "out"), "--seeds", "2", "--workers", "1", "--quiet"]
    assert run(["leaderboard", "--board", str(folder / "board.toml"), *out]) == 0
    assert "Ours" in capsys.readouterr().out
    page = (folder / "out" / "leaderboard.md").read_text()
    assert "## people" in page and "Each method may try at most 3 settings" in page
    rows = (folder / "out" / "leaderboard.csv").read_text().splitlines()
    assert rows[0].startswith("cell,target,method,accuracy") and len(rows) == 1 + 3
    assert len((folder / "out" / "choices.csv").read_text().splitlines()) == 1 + 6


def test_a_cells_folder_has_a_plain_name() -> None:
    assert Cell("adult, alpha 0.3", {}).slug == "adult-alpha-0.3"


def test_a_method_chooses_from_runs_of_its_own_training(tmp_path: Path) -> None:
    longer = '[methods.longer]\nalgorithm = "fedavg"\ntraining = { rounds = 5, lr = 1.0 }\n'
    (tmp_path / "board.toml").write_text(SMALL + longer)
    board = Board.load(tmp_path / "board.toml", methods=["fedavg", "longer"])
    result = run_board(board, tmp_path / "out", {**CHANGES, "seeds": [0]})
    places = {"fedavg": "people", "longer": "people/training-1"}
    runs = {name: Study.load(tmp_path / "out" / place).results[0] for name, place in places.items()}
    assert [len(run.history) for run in runs.values()] == [2, 5]
    assert {one.method: one.accuracy for one in result.choices} == {
        name: run.test["accuracy"] for name, run in runs.items()
    }


def test_thresholds_of_sites_are_for_cells_that_know_their_sites(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    sites = '[methods.sites]\nalgorithm = "fedavg"\nrepair = "groups"\nscope = "both"\n[methods.fedavg]'
    owned = '[cells.owned]\ndata = { rows = 2000, owner = "sex" }\npartition = { kind = "silos" }\n[methods'
    text = SMALL.replace("[methods.fedavg]", sites).replace("[methods", owned, 1)
    file.write_text(
        text.replace('owner = "sex"', 'owner = "workclass"').replace('"silos" }', '"silos", min_rows = 1 }')
    )
    result = run_board(Board.load(file, methods=["sites", "fedavg"]), tmp_path / "out", {**CHANGES, "seeds": [0]})
    assert [(one.cell, one.method) for one in result.choices] == [
        ("people", "fedavg"),
        ("owned", "sites"),
        ("owned", "fedavg"),
    ]


def test_where_every_model_is_degenerate_nothing_is_dominated(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(SMALL.replace("rounds = 2", "rounds = 1, lr = 1e-9"))
    choices = run_board(Board.load(tmp_path / "board.toml", methods=["fedavg"]), tmp_path / "out", CHANGES).choices
    assert all(one.degenerate for one in choices)
    assert [one.hypervolume for one in choices] == [0.0, 0.0]
