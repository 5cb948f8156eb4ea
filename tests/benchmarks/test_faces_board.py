"""Which parts of the faces' leaderboard are computed next, and that each part's choices are kept at once."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from benchmarks.faces_board import STOPPED, Children, Part, PartQueue, compute, main, missing_parts, shared_gpu

from ffalm.leaderboard.board import Board

HEADER = "cell,target,method,seed,accuracy,gap,held,degenerate,chosen,hypervolume"
BOARD = """
targets = ["dpd <= 0.05"]
[study]
seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[cells."celeba, alpha 5"]
data = { source = "celeba" }
[methods.fedavg]
"""
BOTH = ("utkface", "celeba")


@pytest.fixture
def board() -> Board:
    return Board.load("faces", ["utkface, alpha 1", "celeba, alpha 5"])


def choice(cell: str, seed: int) -> str:
    return f'"{cell}",dpd <= 0.05,fedavg,{seed},0.8,0.1,0,,FedAvg,0.2'


def choices(folder: Path, cell: str, seeds: Sequence[int]) -> Path:
    (folder / "choices.csv").write_text("\n".join([HEADER, *(choice(cell, seed) for seed in seeds)]) + "\n")
    return folder / "choices.csv"


def settings(out: Path, at_once: int = 1) -> argparse.Namespace:
    return argparse.Namespace(board="faces", root="R", out=out, seconds=1000.0, at_once=at_once, rounds=None)


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


def test_named_cells_are_completed_in_their_order(board: Board, tmp_path: Path) -> None:
    have = choices(tmp_path, "utkface, alpha 1", range(8))
    both = missing_parts(board, [have], BOTH, ["utkface, alpha 1", "celeba, alpha 5"])
    expected = [*(("utkface, alpha 1", seed) for seed in (8, 9)), *(("celeba, alpha 5", seed) for seed in range(10))]
    assert [(part.cell, part.seed) for part in both] == expected
    one = missing_parts(board, [have], BOTH, ["utkface, alpha 1"])
    assert [(part.cell, part.seed) for part in one] == expected[:2]


def test_cells_without_their_images_are_left_out(board: Board, tmp_path: Path) -> None:
    have = choices(tmp_path, "utkface, alpha 1", range(10))
    assert missing_parts(board, [have], ["utkface"]) == []


def test_parts_that_would_end_too_late_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 1,000 s, the first part is expected to take 400 and takes 600: the second, of the same data, must wait."""
    clock = [0.0]

    def run(_: Children, command: list[str]) -> int:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        seed = int(command[command.index("--seeds") + 1].removesuffix(","))
        choices(folder, command[command.index("--cells") + 1], [seed])
        clock[0] += 600
        return 0

    monkeypatch.setattr("benchmarks.faces_board.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Children, "run", run)
    parts = [
        Part("celeba, alpha 1", "celeba", 3),
        Part("celeba, alpha 5", "celeba", 3),
        Part("utkface, alpha 1", "utkface", 9),
    ]
    compute(parts, settings(tmp_path), 0.0)
    assert capsys.readouterr().out.splitlines() == [
        "celeba, alpha 1, seed 3: 600 s, 2 parts left",
        "utkface, alpha 1, seed 9: 600 s, 1 parts left",
    ]
    expected = [HEADER, choice("celeba, alpha 1", 3), choice("utkface, alpha 1", 9)]
    assert (tmp_path / "choices.csv").read_text().splitlines() == expected


def test_a_last_part_that_has_the_gpu_to_itself_is_expected_to_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two took 600 s at the same time: with 350 s left one alone fits, a second beside it does not."""
    clock = [0.0]
    monkeypatch.setattr("benchmarks.faces_board.time.monotonic", lambda: clock[0])
    parts = [Part("celeba, alpha 5", "celeba", seed) for seed in range(4)]
    queue = PartQueue(parts, 950.0, tmp_path / "choices.csv", at_once=2)
    begun = [queue.next(), queue.next()]
    clock[0] = 600.0
    for part in begun:
        assert part is not None
        queue.add(part, f"{HEADER}\n{choice(part.cell, part.seed)}\n", 600.0)
    assert queue.next() == parts[2]
    assert queue.next() is None


def test_parts_are_computed_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def run(_: Children, command: list[str]) -> int:
        both.wait(10)
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        choices(folder, "celeba, alpha 5", [int(command[command.index("--seeds") + 1].removesuffix(","))])
        return 0

    monkeypatch.setattr(Children, "run", run)
    parts = [Part("celeba, alpha 5", "celeba", seed) for seed in (3, 4)]
    compute(parts, settings(tmp_path, at_once=2), time.monotonic())
    lines = (tmp_path / "choices.csv").read_text().splitlines()
    assert sorted(lines[1:]) == [choice("celeba, alpha 5", seed) for seed in (3, 4)]


def test_a_cell_that_fails_is_reported_and_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Children, command: list[str]) -> int:
        if "celeba, alpha 1" in command:
            return 1
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        choices(folder, "celeba, alpha 5", [3])
        return 0

    monkeypatch.setattr(Children, "run", run)
    parts = [Part(cell, "celeba", seed) for seed in (3, 4) for cell in ("celeba, alpha 1", "celeba, alpha 5")][:3]
    with pytest.raises(SystemExit, match=r"^Failed: celeba, alpha 1, seed 3\.$"):
        compute(parts, settings(tmp_path), time.monotonic())
    assert capsys.readouterr().out.splitlines() == [
        "celeba, alpha 1, seed 3: failed, 1 parts left",
        "celeba, alpha 5, seed 3: 0 s, 0 parts left",
    ]
    assert (tmp_path / "choices.csv").read_text().splitlines() == [HEADER, choice("celeba, alpha 5", 3)]


@pytest.mark.parametrize("code", STOPPED)
def test_ctrl_c_in_a_part_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    begun = []

    def run(_: Children, command: list[str]) -> int:
        begun.append(command)
        return code

    monkeypatch.setattr(Children, "run", run)
    compute(
        [Part("celeba, alpha 1", "celeba", 3), Part("celeba, alpha 5", "celeba", 3)],
        settings(tmp_path),
        time.monotonic(),
    )
    assert len(begun) == 1


def test_stopping_ends_the_running_commands_and_begins_no_more() -> None:
    children = Children()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(children.run, command)
        while not children.running:
            time.sleep(0.01)
        children.stop()
        assert ended.result(30) in STOPPED
    assert children.run([sys.executable, "-c", "raise SystemExit(5)"]) in STOPPED


def test_the_choices_of_an_earlier_call_are_kept_and_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices(tmp_path, "celeba, alpha 5", range(9))
    have = tmp_path / "have.csv"
    have.write_text("\n".join([HEADER, *(choice("celeba, alpha 5", seed) for seed in [0])]) + "\n")
    board = tmp_path / "board.toml"
    board.write_text(BOARD)
    (tmp_path / "faces" / "celeba").mkdir(parents=True)
    seeds = []

    def run(_: Children, command: list[str]) -> int:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        seeds.append(command[command.index("--seeds") + 1])
        choices(folder, "celeba, alpha 5", [9])
        return 0

    monkeypatch.setattr(Children, "run", run)
    monkeypatch.setattr("benchmarks.faces_board.shared_gpu", nullcontext)
    given = ["--board", board, "--have", have, "--root", tmp_path / "faces", "--out", tmp_path]
    monkeypatch.setattr("sys.argv", ["faces_board.py", *map(str, given)])
    main()
    assert seeds == ["9,"]
    kept = [choice("celeba, alpha 5", seed) for seed in range(10)]
    assert (tmp_path / "choices.csv").read_text().splitlines() == [HEADER, *kept]


def test_a_folder_without_faces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["faces_board.py", "--root", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        main()
    assert f"{tmp_path} has neither UTKFace/ nor celeba/" in capsys.readouterr().err


@pytest.mark.parametrize("running", [False, True])
def test_only_an_mps_of_our_own_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(f'#!/bin/sh\n[ "$1" = -d ] && exit {int(running)}\ncat > {log}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with shared_gpu():
        pass
    assert log.exists() == (not running)
