"""The published leaderboard is what its stored choices give."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.leaderboard_report import by_cell, of_cell, overall
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import seeds_by_cell, standings
from ffalm.leaderboard.stored_choices import read_choices
from ffalm.report.rendering import to_markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"


BOARDS = {"tables": "leaderboard", "faces": "leaderboard-faces"}


@cache
def choices_of_board(board: str) -> list[MethodChoice]:
    return list(read_choices(RESULTS / f"{BOARDS[board]}-choices.csv.gz"))


@pytest.mark.parametrize("board", BOARDS)
def test_ranks_and_means_follow_from_the_choices(board: str) -> None:
    found = standings(choices_of_board(board))
    rows = list(csv.DictReader((RESULTS / f"{BOARDS[board]}.csv").read_text().splitlines()))
    assert len(rows) == len(found)
    for row, one in zip(rows, found, strict=True):
        assert (row["cell"], row["target"], row["method"], row["problem"]) == (
            one.cell,
            one.target,
            one.method,
            one.problem,
        )
        for name in ("accuracy", "gap", "held", "hypervolume", "rank", "p"):
            assert float(row[name] or "nan") == pytest.approx(getattr(one, name), nan_ok=True)


@pytest.mark.parametrize("name", BOARDS)
def test_the_page_shows_these_tables(name: str) -> None:
    page, board, choices = (RESULTS / f"{BOARDS[name]}.md").read_text(), Board.load(name), choices_of_board(name)
    found = standings(choices)
    assert to_markdown(overall(board, found)) in page
    assert to_markdown(by_cell(board, found)) in page
    for cell, seeds in seeds_by_cell(choices).items():
        assert to_markdown(of_cell(board, found, cell, seeds)) in page
