from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffalm.algorithms import algorithms
from ffalm.errors import UserError
from ffalm.leaderboard.board import BOARDS, Board, key_of
from ffalm.targets.target import Target

SMALL = """
title = "Small"
targets = ["dpd <= 0.05"]
budget = 3
[study]
training = { rounds = 2 }
[cells.people]
data = { source = "census", rows = 2000 }
[methods.fedavg]
[methods.ffalm]
settings = [{}, { penalty = 5.0 }]
[methods.ours]
title = "Ours"
algorithm = "fedavg"
aims = true
repair = "groups"
"""


def board_of(folder: Path, text: str = SMALL) -> Board:
    file = folder / "board.toml"
    file.write_text(text)
    return Board.load(file)


@pytest.mark.parametrize("name", sorted(file.stem for file in BOARDS.glob("*.toml")))
def test_every_board_of_ours_is_valid_and_within_its_budget(name: str) -> None:
    board = Board.load(name)
    for method in board.methods:
        for target in board.targets:
            assert 1 <= len(method.sections(target)) <= board.budget
    for cell in board.cells:
        assert list(board.configs(cell, {}, "files"))


def test_methods_that_try_the_same_settings_share_the_run(tmp_path: Path) -> None:
    board = board_of(tmp_path)
    (config,) = board.configs(board.cells[0], {}, None).values()
    assert [entry.key for entry in config.entries] == [
        "fedavg",
        "ffalm-preset-safe",
        "ffalm-penalty-5-preset-safe",
        "lagrangian-constraint-dp-tolerance-0.05",
        "lagrangian-constraint-dp-tolerance-0.025",
    ]


def test_a_method_may_be_that_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.algorithms.registry._REGISTERED", algorithms())  # a copy
    file = tmp_path / "board_plugin.py"
    file.write_text("""
from dataclasses import dataclass
import ffalm
@ffalm.register
@dataclass(frozen=True)
class OfABoard(ffalm.Algorithm):
    name = "of-a-board"
    title = "Of a board"
""")
    plugins = f"[study]\nplugins = [{str(file)!r}]\n"
    board = board_of(tmp_path, SMALL.replace("[study]\n", plugins) + "[methods.of-a-board]\n")
    assert board.methods[-1].title == "Of a board"


def test_a_method_that_needs_another_training_has_a_study_of_its_own(tmp_path: Path) -> None:
    board = board_of(tmp_path, SMALL.replace("[methods.ffalm]", "[methods.ffalm]\ntraining = { rounds = 9 }"))
    first, second = board.configs(board.cells[0], {}, None).values()
    assert (first.training.rounds, second.training.rounds) == (2, 9)
    assert [entry.algorithm.name for entry in second.entries] == ["ffalm", "ffalm"]
    assert "ffalm" not in {entry.algorithm.name for entry in first.entries}


def test_a_training_keeps_its_place_where_methods_are_left_out(tmp_path: Path) -> None:
    board_of(tmp_path, SMALL.replace("[methods.ffalm]", "[methods.ffalm]\ntraining = { rounds = 9 }"))
    board = Board.load(tmp_path / "board.toml", methods=["ffalm"])
    assert {place: one.training.rounds for place, one in board.configs(board.cells[0], {}, None).items()} == {1: 9}


def test_a_name_stands_for_its_default_preset(tmp_path: Path) -> None:
    (_, ffalm, _) = board_of(tmp_path).methods
    points = ffalm.sections(Target.parse("dpd <= 0.05"))
    assert all(point["preset"] == "safe" for point in points.values())


def test_the_order_of_settings_does_not_change_a_key() -> None:
    assert key_of({"name": "x", "a": 1, "b": 2.0}) == key_of({"name": "x", "b": 2.0, "a": 1}) == "x-a-1-b-2"
    assert key_of({"name": "x", "a": 0.12345678}) != key_of({"name": "x", "a": 0.12345679})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("{ penalty = 5.0 }", "{penalty = 1.0}, {penalty = 2.0}, {penalty = 3.0}"), "budget is 3"),
        (('repair = "groups"', 'repair = "magic"'), "magic"),
        (("[methods.fedavg]", "[methods.fedavg]\ncolour = 1"), "colour"),
        (("[methods.fedavg]", "[methods.nothing]"), "nothing"),
        (('title = "Small"', 'titel = "Small"'), "titel"),
        (('targets = ["dpd <= 0.05"]', ""), "has no targets"),
        (('"dpd <= 0.05"', '"equalized_odds <= 0.05"'), "one bound of dpd or eod; got 'equalized_odds <= 0.05'"),
        (('"dpd <= 0.05"', '"dpd <= 0.05, eod <= 0.05"'), "one bound of dpd or eod"),
        (('"dpd <= 0.05"', '"dpd <= 0.05", "dpd <= 5 %"'), "'dpd <= 0.05' twice"),
        (("[cells.people]", '[cells."people!"]\n[cells.people]'), "would share the folder 'people'"),
        (("[cells.people]", '[cells."人"]'), "letters a to z"),
        (("budget = 3", 'budget = "3"'), "whole number; got '3'"),
        (("aims = true", 'aims = "false"'), "true or false; got 'false'"),
        (("settings = [{}, { penalty = 5.0 }]", "settings = { penalty = 5.0 }"), "must be a list such as"),
        (("settings = [{}, { penalty = 5.0 }]", "dpd = [1]"), "must be a list such as"),
        (("[cells.people]", '[cells.people]\ntarget = "eod <= 0.1"'), "replace the setting 'target'"),
        (("[study]", '[study]\nconfidence = 0.9'), "replace the setting 'confidence'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_board_is_named(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        board_of(tmp_path, SMALL.replace(*change))


def test_cells_and_methods_can_be_picked(tmp_path: Path) -> None:
    board_of(tmp_path)
    board = Board.load(tmp_path / "board.toml", ["people"], ["ours"])
    assert [method.name for method in board.methods] == ["ours"]
    with pytest.raises(UserError, match="strangers"):
        Board.load(tmp_path / "board.toml", ["strangers"])


EXTENDED = """
extends = "tables"
[methods.ffalm-fast]
algorithm = "ffalm"
settings = [{ dual_lr = 0.5 }]
[cells.people]
data = { source = "census", rows = 2000 }
"""


def test_a_file_adds_rows_and_cells_to_a_board_of_ours(tmp_path: Path) -> None:
    tables, board = Board.load("tables"), board_of(tmp_path, EXTENDED)
    assert (board.title, board.targets, board.budget) == (tables.title, tables.targets, tables.budget)
    assert board.methods[:-1] == tables.methods and board.methods[-1].title == "FFALM"
    assert board.cells[:-1] == tables.cells and board.cells[-1].name == "people"


def test_an_added_row_is_trained_as_the_boards_own_rows_are(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(EXTENDED)
    board = Board.load(tmp_path / "board.toml", methods=["ffalm-fast"])
    tables = Board.load("tables", methods=["ffalm"])
    for cell in tables.cells:
        (ours,), (own,) = tables.configs(cell, {}, "files").values(), board.configs(cell, {}, "files").values()
        assert [entry.key for entry in own.entries] == ["ffalm-dual_lr-0.5-preset-safe"]
        assert replace(own, entries=ours.entries) == ours


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"tables"', '"table"'), "There is no board 'table'"),
        (("[methods.ffalm-fast]", "[methods.ffalm]"), "has methods of its own, and one is named 'ffalm'"),
        (("[cells.people]", '[cells."census, alpha 1"]'), "has cells of its own, and one is named 'census, alpha 1'"),
        (("[methods", "budget = 9\n[methods"), "There is no part of a file that extends a board 'budget'"),
        (("[methods", "study = { seeds = [7] }\n[methods"), "There is no setting .* 'study.seeds'"),
    ],
)
def test_what_an_extension_may_not_change_is_refused(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        board_of(tmp_path, EXTENDED.replace(*change, 1))
