"""Which parts of the faces' leaderboard are computed next, and that each part's choices are kept at once."""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.faces_board import Part, compute, missing_parts

from ffalm.leaderboard.board import Board

HEADER = "cell,target,method,seed,accuracy,gap,held,degenerate,chosen,hypervolume"
BOTH = ("utkface", "celeba")


@pytest.fixture
def board() -> Board:
    return Board.load("faces", ["utkface, alpha 1", "celeba, alpha 5"])


def choice(cell: str, seed: int) -> str:
    return f'"{cell}",dpd <= 0.05,fedavg,{seed},0.8,0.1,0,,FedAvg,0.2'


def choices(folder: Path, cell: str, seeds: Sequence[int]) -> Path:
    (folder / "choices.csv").write_text("\n".join([HEADER, *(choice(cell, seed) for seed in seeds)]) + "\n")
    return folder / "choices.csv"


def test_cells_with_the_fewest_seeds_come_first(board: Board, tmp_path: Path) -> None:
    have = choices(tmp_path, "utkface, alpha 1", [0, 1, 2, 3, 5, 6, 7])
    parts = missing_parts(board, [have], BOTH)
    assert [(part.cell, part.seed) for part in parts] == [
        *(("celeba, alpha 5", seed) for seed in range(7)),
        ("utkface, alpha 1", 4),
        ("celeba, alpha 5", 7),
        ("utkface, alpha 1", 8),
        ("celeba, alpha 5", 8),
        ("utkface, alpha 1", 9),
        ("celeba, alpha 5", 9),
    ]


def test_cells_without_their_images_are_left_out(board: Board, tmp_path: Path) -> None:
    have = choices(tmp_path, "utkface, alpha 1", range(10))
    assert missing_parts(board, [have], ["utkface"]) == []


def test_parts_that_would_end_too_late_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 1,000 s, the first part is expected to take 400 and takes 600: the second, of the same data, must wait."""
    clock = [0.0]
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        seed = int(command[command.index("--seeds") + 1].removesuffix(","))
        choices(folder, command[command.index("--cells") + 1], [seed])
        commands.append(command)
        clock[0] += 600

    monkeypatch.setattr("benchmarks.faces_board.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("benchmarks.faces_board.subprocess.run", run)
    given = argparse.Namespace(board="faces", root="R", out=tmp_path, seconds=1000.0, at_once=1, rounds=None)
    parts = [
        Part("celeba, alpha 1", "celeba", 3),
        Part("celeba, alpha 5", "celeba", 3),
        Part("utkface, alpha 1", "utkface", 9),
    ]
    compute(parts, given, 0.0)
    assert capsys.readouterr().out.splitlines() == [
        "celeba, alpha 1, seed 3: 600 s, 2 parts left",
        "utkface, alpha 1, seed 9: 600 s, 1 parts left",
    ]
    expected = [HEADER, choice("celeba, alpha 1", 3), choice("utkface, alpha 1", 9)]
    assert (tmp_path / "choices.csv").read_text().splitlines() == expected


def test_a_part_that_fails_is_told_and_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = threading.Barrier(2)

    def run(command: list[str], check: bool) -> None:
        beside.wait(10)
        if "celeba, alpha 1" in command:
            raise subprocess.CalledProcessError(1, command)
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        choices(folder, "celeba, alpha 5", [3])

    monkeypatch.setattr("benchmarks.faces_board.subprocess.run", run)
    given = argparse.Namespace(board="faces", root="R", out=tmp_path, seconds=1000.0, at_once=2, rounds=None)
    parts = [Part("celeba, alpha 1", "celeba", 3), Part("celeba, alpha 5", "celeba", 3)]
    with pytest.raises(subprocess.CalledProcessError):
        compute(parts, given, time.monotonic())
    assert (tmp_path / "choices.csv").read_text().splitlines() == [HEADER, choice("celeba, alpha 5", 3)]
