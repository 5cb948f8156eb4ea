"""Choices of a board that was computed in parts are joined and ranked as if one run had made them."""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.leaderboard.test_board import SMALL
from typer.testing import CliRunner

from ffalm.cli import app, run
from ffalm.errors import UserError
from ffalm.leaderboard.board import Board
from ffalm.leaderboard.board_runs import run_board
from ffalm.leaderboard.leaderboard_report import tidy
from ffalm.leaderboard.standings import standings
from ffalm.leaderboard.stored_choices import join_choices, read_choices
from ffalm.report.rendering import to_csv

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PUBLISHED = RESULTS / "leaderboard-faces-choices.csv.gz"
HEADER, *LINES = gzip.decompress(PUBLISHED.read_bytes()).decode().splitlines()
CELLS = {row[0] for row in csv.reader(LINES)}
FIRST = '"utkface, alpha 0.3",dpd <= 0.05,answer,0,'
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines of choices to a file, compressed where its name says so."""

    def written(name: str, lines: list[str], header: str = HEADER) -> Path:
        content = ("\n".join([header, *lines]) + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return tmp_path / name

    return written


@pytest.fixture
def faces() -> Board:
    return Board.load("faces")


def numbers(file: Path) -> list[dict[str, Any]]:
    texts = ("cell", "target", "method", "problem")
    rows = csv.DictReader(file.read_text().splitlines())
    return [{key: value if key in texts else float(value or "nan") for key, value in row.items()} for row in rows]


def halves(write: Write) -> list[Path]:
    """The published choices in two files by their seeds, in no order."""
    lines = random.Random(0).sample(LINES, len(LINES))
    first = [line for line in lines if "utkface" in line and next(csv.reader([line]))[3] in "024"]
    return [write("a.csv", first), write("b.csv.gz", [line for line in lines if line not in first])]


def test_the_published_choices_in_two_files_give_the_published_leaderboard(write: Write, tmp_path: Path) -> None:
    files = ",".join(map(str, halves(write)))
    result = CliRunner().invoke(
        app, ["leaderboard", "--board", "faces", "--choices", files, "--out", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.output
    found, published = numbers(tmp_path / "o" / "leaderboard.csv"), numbers(RESULTS / "leaderboard-faces.csv")
    assert len(found) == len(published) == len(CELLS) * 3 * 11
    for mine, theirs in zip(found, published, strict=True):
        assert mine == pytest.approx(theirs, nan_ok=True)
    assert (tmp_path / "o" / "choices.csv").read_text().splitlines() == [HEADER, *LINES]
    page = (tmp_path / "o" / "leaderboard.md").read_text()
    for cell in CELLS:
        seeds = {row[3] for row in csv.reader(LINES) if row[0] == cell}
        assert f"**{cell}**: {len(seeds)} seeds. Bold" in page
    assert "a model in every seed, none of them is degenerate" in page
    assert "the files have no choices of it" not in page


def test_cells_of_which_the_files_have_no_choices_are_named_on_the_page(write: Write, tmp_path: Path) -> None:
    file = write("a.csv", [line for line in LINES if "celeba, alpha 5" not in line])
    result = CliRunner().invoke(
        app, ["leaderboard", "--board", "faces", "--choices", str(file), "--out", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.output
    assert "- celeba, alpha 5: the files hold no choices of it." in (tmp_path / "o" / "leaderboard.md").read_text()


def test_entries_come_in_the_order_of_one_run_whatever_the_order_of_files(write: Write, faces: Board) -> None:
    assert join_choices(faces, halves(write)).choices == list(read_choices(PUBLISHED))


def test_parts_by_seed_are_the_run_of_all_seeds(tmp_path: Path) -> None:
    learned = SMALL.replace("rows = 2000", "rows = 6000").replace("rounds = 2", "rounds = 20, lr = 0.3")
    (tmp_path / "board.toml").write_text(learned)
    board = Board.load(tmp_path / "board.toml")
    words = ["--board", str(tmp_path / "board.toml"), "--methods", "fedavg,ours", "--workers", "1", "--quiet"]
    for part, seeds in (("one", "0,"), ("two", "1,"), ("whole", "0,1")):
        assert run(["leaderboard", *words, "--seeds", seeds, "--out", str(tmp_path / part)]) == 0
    joined = join_choices(board, [tmp_path / "two" / "choices.csv", tmp_path / "one" / "choices.csv"]).choices
    whole = list(read_choices(tmp_path / "whole" / "choices.csv"))
    assert [(one.seed, one.method, one.chosen, one.held) for one in joined] == [
        (one.seed, one.method, one.chosen, one.held) for one in whole
    ]
    assert [one.accuracy for one in joined] == pytest.approx([one.accuracy for one in whole])
    assert [one.gap for one in joined] == pytest.approx([one.gap for one in whole])
    assert [one.hypervolume for one in joined] == pytest.approx([one.hypervolume for one in whole])


def test_what_a_board_writes_is_what_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(SMALL)
    board = Board.load(tmp_path / "board.toml", methods=["fedavg"])
    result = run_board(board, tmp_path / "out", {"seeds": [0], "workers": 1})
    words = ["--board", str(tmp_path / "board.toml"), "--methods", "fedavg", "--seeds", "1", "--quiet"]
    assert run(["leaderboard", *words, "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    assert list(read_choices(tmp_path / "out" / "choices.csv")) == result.choices


def test_a_choice_that_two_files_have_is_taken_once(write: Write, faces: Board) -> None:
    assert LINES[0].startswith(FIRST)
    without = f"{FIRST},,0,,,0.0"  # no model: accuracy and gap are NaN, which is not equal to itself
    lines = [without, *LINES[1:]]
    twice = join_choices(faces, [write("a.csv", lines), write("b.csv", lines[:50])]).choices
    assert len(twice) == len(LINES)


def test_volumes_of_a_seed_whose_methods_are_in_two_files_are_those_of_the_larger_file(
    write: Write, faces: Board, tmp_path: Path
) -> None:
    """The smaller file has the choices of FedAvg too, with the volumes of its own box, which are dropped."""
    own = [line for line in LINES if ",ffalm," in line or ",fedavg," in line]
    small = write("small.csv", [line.rpartition(",")[0] + ",0.5" for line in own])
    rest = [line for line in LINES if ",ffalm," not in line]
    for files in ([small, write("rest.csv", rest)], [tmp_path / "rest.csv", small]):
        joined = join_choices(faces, files).choices
        for one, published in zip(joined, read_choices(PUBLISHED), strict=True):
            other = one.method == "ffalm"
            assert one.hypervolume == pytest.approx(math.nan if other else published.hypervolume, nan_ok=True)
            assert replace(one, hypervolume=0.0) == replace(published, hypervolume=0.0)


def test_different_choices_for_one_seed_are_refused_with_both_files(write: Write, faces: Board) -> None:
    other = LINES[0].replace(",0.885", ",0.775")
    assert other != LINES[0]
    with pytest.raises(UserError, match=r"'answer' in the cell 'utkface, alpha 0.3' .* in seed 0 differ") as refused:
        join_choices(faces, [write("a.csv", LINES), write("b.csv", [other])])
    assert "a.csv' and '" in str(refused.value) and "b.csv'" in str(refused.value)


def test_a_method_that_lacks_a_seed_of_its_cell_is_refused(write: Write, faces: Board) -> None:
    file = write("a.csv", [line for line in LINES if not line.startswith('"celeba, alpha 0.3",eod <= 0.1,ffalm,1,')])
    with pytest.raises(UserError, match=r"'celeba, alpha 0.3' has no choice of 'ffalm' at 'eod <= 0.1' in seed 1"):
        join_choices(faces, [file])
    rest = Board.load("faces", methods=[one.name for one in faces.methods if one.name != "ffalm"])
    assert "ffalm" not in {one.method for one in join_choices(rest, [file], skip_methods=True).choices}


def test_a_method_may_be_missing_from_a_whole_cell(write: Write, faces: Board) -> None:
    kept = [line for line in LINES if not line.startswith('"celeba') or ",ffalm," not in line]
    choices = join_choices(faces, [write("a.csv", kept)]).choices
    assert {one.cell for one in choices if one.method == "ffalm"} == {cell for cell in CELLS if "utkface" in cell}
    assert len(standings(choices)) == 3 * sum(11 if "utkface" in cell else 10 for cell in CELLS)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("utkface, alpha 0.3", "mars", "a.csv' has choices of the cell 'mars'"),
        (",answer,", ",magic,", "a.csv' has choices of the method 'magic'"),
        ("dpd <= 0.05", "dpd <= 0.04", "a.csv' has choices of the target 'dpd <= 0.04'"),
    ],
)
def test_what_the_board_does_not_have_is_refused(write: Write, faces: Board, old: str, new: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        join_choices(faces, [write("a.csv", [LINES[0].replace(old, new)])])


def test_cells_and_methods_narrow_the_board(write: Write, tmp_path: Path) -> None:
    picked = ["--cells", "celeba, alpha 0.3", "--methods", "fedavg,answer", "--choices", str(write("a.csv", LINES))]
    assert run(["leaderboard", "--board", "faces", *picked, "--out", str(tmp_path / "out")]) == 0
    found = [(one.cell, one.seed, one.method) for one in read_choices(tmp_path / "out" / "choices.csv")]
    assert set(found) == {("celeba, alpha 0.3", seed, method) for seed in (0, 1) for method in ("answer", "fedavg")}
    assert [method for _, _, method in found[:2]] == ["fedavg", "answer"]  # as they were asked for


@pytest.mark.parametrize(
    ("lines", "header", "told"),
    [
        ([LINES[0]], HEADER.replace("gap", "gaps"), "a.csv' has no column 'gap'"),
        ([LINES[0].replace(",0,0.885", ",zero,0.885")], HEADER, "'seed' in data row 1 of .*a.csv' must be a whole"),
        ([LINES[0].replace(",0.885", ",good0.885")], HEADER, "'accuracy' in data row 1 of .*a.csv' must be a number"),
        ([LINES[1], LINES[0].replace(",1,,", ",yes,,")], HEADER, "'held' in data row 2 of .*a.csv' must be 0 or 1"),
        ([LINES[0].rpartition(",")[0] + ",inf"], HEADER, "'hypervolume' in data row 1 of .*a.csv' must be a number"),
        ([], HEADER, "a.csv' has a header but no rows"),
        ([], "", "a.csv' is empty"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named(write: Write, faces: Board, lines: list[str], header: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        join_choices(faces, [write("a.csv", lines, header)])


def test_a_file_that_is_not_there_or_is_damaged_is_named(write: Write, faces: Board, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*missing\.csv"):
        join_choices(faces, [tmp_path / "missing.csv"])
    half = write("half.csv.gz", LINES)
    half.write_bytes(half.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"half\.csv\.gz' cannot be read"):
        join_choices(faces, [half])


@pytest.mark.parametrize("flag", ["--rounds", "--workers", "--root"])
def test_flags_of_training_are_refused_beside_choices(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leaderboard", "--board", "faces", "--choices", str(PUBLISHED), flag, "3"]) == 2
    assert f"--choices and {flag} exclude each other" in capsys.readouterr().err


def test_seeds_select_what_is_ranked(faces: Board) -> None:
    cells = {one.cell for one in read_choices(PUBLISHED)}
    joined = join_choices(faces, [PUBLISHED], seeds=[1])
    assert joined.choices == [one for one in read_choices(PUBLISHED) if one.seed == 1]
    assert {one.cell for one in joined.choices} == cells and not joined.left_out


def test_a_method_of_ones_own_is_ranked_among_published_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It copies FedAvg's choices, with one point more of accuracy, in seeds 0 and 1 only."""
    (tmp_path / "mine.toml").write_text('extends = "faces"\n[methods.mine]\ntitle = "Mine"\nalgorithm = "fedavg"\n')
    published = list(read_choices(PUBLISHED))
    own = [
        replace(one, method="mine", accuracy=one.accuracy + 0.01)
        for one in published
        if one.method == "fedavg" and one.seed < 2
    ]
    (tmp_path / "own.csv").write_text(to_csv(tidy(own)))
    board, files = str(tmp_path / "mine.toml"), f"{PUBLISHED},{tmp_path / 'own.csv'}"
    words = ["leaderboard", "--board", board, "--choices", files, "--out", str(tmp_path / "out")]
    assert run(words) == 2
    assert "choose with --methods or --seeds" in capsys.readouterr().err
    assert run([*words, "--seeds", "2"]) == 0
    rows = {(row["cell"], row["target"], row["method"]): row for row in numbers(tmp_path / "out" / "leaderboard.csv")}
    for cell in CELLS:
        theirs, mine = rows[cell, "dpd <= 0.05", "fedavg"], rows[cell, "dpd <= 0.05", "mine"]
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"] + 0.01) and mine["gap"] == theirs["gap"]
        assert math.isnan(mine["hypervolume"]) and theirs["hypervolume"] > 0
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    assert "| Mine |" in page and "undefined" not in page


def test_no_file_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leaderboard", "--board", "faces", "--choices", " , "]) == 2
    assert "--choices takes one file" in capsys.readouterr().err


def test_files_without_a_choice_of_the_board_are_refused(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("a.csv", [line for line in LINES if "celeba, alpha 5" not in line])
    words = ["leaderboard", "--board", "faces", "--choices", str(file), "--cells", "celeba, alpha 5"]
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    assert "is of the cells, methods and seeds that are asked for" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_read_is_not_replaced(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("choices.csv", LINES)
    words = ["leaderboard", "--board", "faces", "--choices", str(file), "--cells", "celeba, alpha 0.3"]
    assert run([*words, "--out", str(tmp_path)]) == 2
    assert "would replace" in capsys.readouterr().err
    assert file.read_text().splitlines() == [HEADER, *LINES]
