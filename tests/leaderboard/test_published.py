"""The published leaderboard is what its stored choices give."""

from __future__ import annotations

import csv
import gzip
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.contest import Entry
from ffalm.leaderboard.leaderboard_report import of_cell, overall
from ffalm.leaderboard.standings import Standing, standings
from ffalm.report.rendering import to_markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"


BOARDS = {"tables": "leaderboard", "faces": "leaderboard-faces"}


@cache
def standings_of(board: str) -> list[Standing]:
    with gzip.open(RESULTS / f"{BOARDS[board]}-choices.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return standings([Entry(**{one.name: _read(one.name, row[one.name]) for one in fields(Entry)}) for row in rows])


def _read(name: str, text: str) -> Any:
    if name in ("accuracy", "gap", "hypervolume"):
        return float(text or "nan")
    return int(text) if name == "seed" else text in ("1", "1.0") if name == "held" else text


@pytest.mark.parametrize("board", BOARDS)
def test_ranks_and_means_follow_from_the_choices(board: str) -> None:
    found = standings_of(board)
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
    page, board, found = (RESULTS / f"{BOARDS[name]}.md").read_text(), Board.load(name), standings_of(name)
    assert to_markdown(overall(board, found)) in page
    for cell in dict.fromkeys(one.cell for one in found):
        assert to_markdown(of_cell(board, found, cell)) in page
