"""The tables of a leaderboard's page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.leaderboard.test_board import SMALL, board_of
from tests.leaderboard.test_standings import choices

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.leaderboard_report import by_cell
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import standings
from ffalm.report.rendering import to_markdown


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return board_of(tmp_path)


def shown(board: Board, found: list[MethodChoice]) -> str:
    """The only row of a table of one cell and one bound."""
    return to_markdown(by_cell(board, standings(found))).splitlines()[-1]


def test_the_first_of_a_cell_stands_beside_fedavg_and_names_who_is_tied_with_it(board: Board) -> None:
    found = [
        *choices("fedavg", [0.90, 0.92], gap=0.2),
        *choices("ours", [0.86, 0.84]),
        *choices("ffalm", [0.83, 0.85], gap=0.03),
    ]
    assert shown(board, found) == "| dpd &lt;= 0.05 | cell | **Ours** | 85.0 | 1.0 | 100 % | FFALM | 91.0 | 20.0 |"


def test_where_nobody_is_within_the_bound_the_nearest_sound_method_is_named(board: Board) -> None:
    found = [
        *choices("fedavg", [0.90, 0.92], gap=0.2),
        *choices("ffalm", [0.80, 0.82], gap=0.1),
        *choices("ours", [0.76, 0.76], gap=0.0, degenerate="one label"),
    ]
    assert (
        shown(board, found) == "| dpd &lt;= 0.05 | cell | nobody; nearest FFALM | 81.0 | 10.0 | 0 % |  | 91.0 | 20.0 |"
    )
    assert "nobody qualifies" in shown(board, found[-2:])


def test_a_board_without_fedavg_has_no_columns_of_it(tmp_path: Path) -> None:
    board = board_of(tmp_path, SMALL.replace("[methods.fedavg]\n", ""))
    assert shown(board, choices("ours", [0.8])) == "| dpd &lt;= 0.05 | cell | **Ours** | 80.0 | 1.0 | 100 % |  |"
