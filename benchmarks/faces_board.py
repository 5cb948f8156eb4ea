"""Compute missing seeds of the faces' leaderboard on a GPU that is there for some minutes only.

    python benchmarks/faces_board.py                                        # what the published choices lack
    python benchmarks/faces_board.py --root FACES --out OUT --seconds 560   # computes it, part after part

A part is a cell with a few seeds; cells with the fewest seeds come first. FACES holds UTKFace/ or celeba/ or both, and
the cells of what it lacks are left out. No part is begun that is not expected to end within --seconds, counted from the
start. After each part OUT/choices.csv holds the choices of all parts so far, so a machine that is taken away costs the
part it was at. Then, anywhere:

    ffalm leaderboard --board faces --choices docs/results/leaderboard-faces-choices.csv.gz,OUT/choices.csv --out FOLDER
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.stored_choices import read_choices
from ffalm.system.files import write_atomic

PUBLISHED = Path(__file__).parents[1] / "docs" / "results" / "leaderboard-faces-choices.csv.gz"
FOLDERS = {"utkface": "UTKFace", "celeba": "celeba"}  # of each data source, below --root
EXPECTED = {"utkface": 120.0, "celeba": 200.0}  # seconds a seed of 28 runs, on an H200 with 2 processes


@dataclass(frozen=True)
class Part:
    """A cell and the seeds of it that are computed together."""

    cell: str
    source: str
    seeds: tuple[int, ...]


def missing_parts(board: Board, files: Sequence[Path], sources: Sequence[str], at_once: int) -> list[Part]:
    """What these files of choices lack, in parts of `at_once` seeds; those that bring a cell fewer seeds come first."""
    present = {(one.cell, one.seed) for file in files for one in read_choices(file)}
    wanted = next(iter(board.configs(board.cells[0], {}, "faces").values())).seeds
    ranked: list[tuple[int, Part]] = []
    for cell in board.cells:
        lacking = [seed for seed in wanted if (cell.name, seed) not in present]
        for first in range(0, len(lacking) if cell.source in sources else 0, at_once):
            seeds = tuple(lacking[first : first + at_once])
            ranked.append((len(wanted) - len(lacking) + first, Part(cell.name, cell.source, seeds)))
    return [part for _, part in sorted(ranked, key=lambda one: one[0])]


def compute(parts: Sequence[Part], given: argparse.Namespace, began: float) -> None:
    """Compute the parts that the time allows, by the slowest seed so far of the same data; at first by `EXPECTED`."""
    slowest: dict[str, float] = {}
    done: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, part in enumerate(parts):
            left = began + given.seconds - time.monotonic()
            needed = slowest.get(part.source, EXPECTED[part.source]) * len(part.seeds)
            if needed > left:
                print(f"{part.cell}, seeds {part.seeds}: {needed:.0f} s needed, {left:.0f} s left", flush=True)
                continue
            start, out = time.monotonic(), Path(scratch) / str(number)
            command = [sys.executable, "-m", "ffalm", "leaderboard", "--board", given.board, "--root", given.root,
                       "--cells", part.cell, "--seeds", ",".join(map(str, part.seeds)) + ",",
                       "--workers", str(given.workers), "--out", str(out)]  # fmt: skip
            command += [] if given.rounds is None else ["--rounds", str(given.rounds)]
            subprocess.run(command, check=True)
            header, *lines = (out / "choices.csv").read_text().splitlines()
            done += lines
            write_atomic(given.out / "choices.csv", "\n".join([header, *done]) + "\n")
            shutil.rmtree(out)
            took = time.monotonic() - start
            slowest[part.source] = max(slowest.get(part.source, 0.0), took / len(part.seeds))
            print(f"{part.cell}, seeds {part.seeds}: {took:.0f} s", flush=True)


@contextmanager
def shared_gpu() -> Iterator[None]:
    """NVIDIA's MPS, with which several processes compute on one GPU at the same time; nothing where it is missing."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    subprocess.run([control, "-d"], check=False)  # fails where it already runs
    try:
        yield
    finally:
        # "quit" alone waits for every client, also for one that was killed and never told the server.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([control], input="quit -t 5\n", text=True, check=False, timeout=20)


def main() -> None:
    """Print what is missing, or compute it."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of UTKFace/ and celeba/; without it nothing is computed")
    parser.add_argument("--out", type=Path, default=Path("faces-board"), help="folder for choices.csv")
    parser.add_argument("--seconds", type=float, default=560.0, help="no part is begun that would end later")
    parser.add_argument("--have", type=Path, action="append", help="choices that exist; default: the published ones")
    parser.add_argument("--at-once", type=int, default=2, help="seeds of a part")
    parser.add_argument("--workers", type=int, default=2, help="processes; each trains the runs of one seed")
    parser.add_argument("--board", default="faces")
    parser.add_argument("--rounds", type=int, help="fewer, to try it")
    given = parser.parse_args()
    sources = [one for one, folder in FOLDERS.items() if given.root is None or (Path(given.root) / folder).is_dir()]
    parts = missing_parts(Board.load(given.board), given.have or [PUBLISHED], sources, given.at_once)
    if given.root is None:
        writer = csv.writer(sys.stdout)
        writer.writerows([part.cell, " ".join(map(str, part.seeds))] for part in parts)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    with shared_gpu():
        compute(parts, given, began)


if __name__ == "__main__":
    main()
