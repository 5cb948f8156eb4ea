"""Compute missing seeds of the faces' leaderboard on a GPU that is available for a few minutes.

    python benchmarks/faces_board.py                                        # what the published choices lack
    python benchmarks/faces_board.py --root FACES --out OUT --seconds 560   # computes it, part after part
    python benchmarks/faces_board.py --root FACES --out OUT --cells "celeba, alpha 1; celeba, alpha 5"   # these first

A part is one seed of a cell. Cells with the fewest seeds come first, or with --cells these in their order, each to its
last seed, and no others. FACES holds UTKFace/ or celeba/ or both; cells of
the other are left out. Two parts are computed at the same time: while one loads its images or lets its methods choose,
the other trains. A part is started only if it is expected to end within --seconds of the start of this program. If a
part fails, its cell is left out and the other cells go on.

After each part OUT/choices.csv holds the choices of all parts so far, so losing the machine costs only the parts under
way, and the same command continues from there. Then, on any machine:

    ffalm leaderboard --board faces --choices docs/results/leaderboard-faces-choices.csv.gz,OUT/choices.csv --out FOLDER
"""

from __future__ import annotations

import argparse
import csv
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.stored_choices import read_choices
from ffalm.system.files import write_atomic

PUBLISHED = Path(__file__).parents[1] / "docs" / "results" / "leaderboard-faces-choices.csv.gz"
STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit codes of `ffalm` that was stopped
FOLDERS = {"utkface": "UTKFace", "celeba": "celeba"}  # of each data source, below --root
EXPECTED = {"utkface": 240.0, "celeba": 400.0}  # seconds of a part on an H200 with two at a time


@dataclass(frozen=True)
class Part:
    """A seed of a cell."""

    cell: str
    source: str
    seed: int


def missing_parts(board: Board, files: Sequence[Path], sources: Sequence[str], cells: Sequence[str] = ()) -> list[Part]:
    """The parts that these files of choices lack: of these cells in their order, or those of few seeds first."""
    present = {(one.cell, one.seed) for file in files for one in read_choices(file)}
    wanted = next(iter(board.configs(board.cells[0], {}, "faces").values())).seeds
    ranked: list[tuple[int, Part]] = []
    for cell in board.cells:
        if cell.source not in sources or (cells and cell.name not in cells):
            continue
        lacking = [seed for seed in wanted if (cell.name, seed) not in present]
        for place, seed in enumerate(lacking):
            rank = cells.index(cell.name) if cells else len(wanted) - len(lacking) + place
            ranked.append((rank, Part(cell.name, cell.source, seed)))
    return [part for _, part in sorted(ranked, key=lambda one: one[0])]


class PartQueue:
    """The parts that are left, handed out while time allows, and the choices of those that are done.

    Choices that the file already holds are kept.
    """

    def __init__(self, parts: Sequence[Part], deadline: float, file: Path, at_once: int) -> None:
        self._left = list(parts)
        self._at_once, self._running = at_once, 0
        self._deadline = deadline  # by `time.monotonic`
        self._file = file
        self._slowest: dict[str, float] = {}
        self._lines = file.read_text().splitlines()[1:] if file.exists() else []
        self._lock = threading.Lock()
        self.failed: list[Part] = []

    def next(self) -> Part | None:
        """The first part that would end in time if it took as long as the slowest of its data so far, or `EXPECTED`.

        Parts share the GPU, so one that starts while fewer than `at_once` run is expected to be as much faster.
        """
        with self._lock:
            left = self._deadline - time.monotonic()
            share = (self._running + 1) / self._at_once
            for part in self._left:
                if share * self._slowest.get(part.source, EXPECTED[part.source]) <= left:
                    self._left.remove(part)
                    self._running += 1
                    return part
        return None

    def add(self, part: Part, choices: str, seconds: float) -> None:
        """Add the choices of a finished part, the text of its CSV file."""
        with self._lock:
            header, *lines = choices.splitlines()
            self._running -= 1
            self._lines += lines
            write_atomic(self._file, "\n".join([header, *self._lines]) + "\n")
            self._slowest[part.source] = max(self._slowest.get(part.source, 0.0), seconds)
            self._report(part, f"{seconds:.0f} s")

    def drop(self, part: Part) -> None:
        """Leave out the cell of a part that failed."""
        with self._lock:
            self._running -= 1
            self._left = [one for one in self._left if one.cell != part.cell]
            self.failed.append(part)
            self._report(part, "failed")

    def stop(self) -> None:
        """Hand out no more parts."""
        with self._lock:
            self._left = []

    def _report(self, part: Part, ended: str) -> None:
        print(f"{part.cell}, seed {part.seed}: {ended}, {len(self._left)} parts left", flush=True)


class Children:
    """The commands that are running, so that a signal to this program alone ends them too."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # the signal handler may interrupt whoever holds it
        self.stopped = False

    def run(self, command: Sequence[str]) -> int:
        """Run a command without its output; its exit code."""
        with self._lock:
            if self.stopped:
                return STOPPED[0]
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self.running.add(child)
        try:
            return child.wait()
        finally:
            with self._lock:
                self.running.remove(child)

    def stop(self, *_: object) -> None:
        """End the running commands and begin no more; a shell's background processes ignore SIGINT, so SIGTERM."""
        with self._lock:
            self.stopped = True
            for child in self.running:
                child.terminate()


def compute(parts: Sequence[Part], given: argparse.Namespace, began: float, children: Children | None = None) -> None:
    """Compute the parts that the time allows, `--at-once` of them at the same time."""
    children = children or Children()
    queue = PartQueue(parts, began + given.seconds, given.out / "choices.csv", given.at_once)

    def work(scratch: Path) -> None:
        while (part := queue.next()) is not None:
            start = time.monotonic()
            out = scratch / f"{part.source}-{part.cell.split()[-1]}-{part.seed}"
            command = [sys.executable, "-m", "ffalm", "leaderboard", "--board", given.board, "--root", given.root]
            command += ["--cells", part.cell, "--seeds", f"{part.seed},", "--workers", "1", "--out", str(out)]
            command += [] if given.rounds is None else ["--rounds", str(given.rounds)]
            code = children.run(command)
            if code in STOPPED:
                queue.stop()
            elif code:
                queue.drop(part)
            else:
                queue.add(part, (out / "choices.csv").read_text(), time.monotonic() - start)
            shutil.rmtree(out, ignore_errors=True)

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(given.at_once) as pool:
        for worker in [pool.submit(work, Path(scratch)) for _ in range(given.at_once)]:
            worker.result()
    if queue.failed:
        raise SystemExit(f"Failed: {'; '.join(f'{part.cell}, seed {part.seed}' for part in queue.failed)}.")


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Run a block with NVIDIA's MPS, by which several processes share a GPU; without MPS, do nothing."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    started = subprocess.run([control, "-d"], check=False).returncode == 0  # it fails if MPS already runs
    try:
        yield
    finally:
        if started:
            # Without "-t", "quit" waits for every client, even for one that was killed.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit -t 5\n", text=True, check=False, timeout=20)


def main() -> None:
    """Print what is missing, or compute it."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of UTKFace/ and celeba/; without it nothing is computed")
    parser.add_argument("--out", type=Path, default=Path("faces-board"), help="folder for choices.csv")
    parser.add_argument("--seconds", type=float, default=560.0, help="start no part that would end later")
    parser.add_argument("--have", type=Path, action="append", help="existing choices; default: the published ones")
    parser.add_argument("--cells", default="", help="cells to complete, in this order, separated by semicolons")
    parser.add_argument("--at-once", type=int, default=2, help="parts that are computed at the same time")
    parser.add_argument("--board", default="faces")
    parser.add_argument("--rounds", type=int, help="rounds of each run, fewer for a trial")
    given = parser.parse_args()
    sources = [one for one, folder in FOLDERS.items() if given.root is None or (Path(given.root) / folder).is_dir()]
    if not sources:
        parser.error(f"{given.root} has neither {' nor '.join(f'{folder}/' for folder in FOLDERS.values())}")
    own = given.out / "choices.csv"
    have = [*(given.have or [PUBLISHED]), *([own] if own.exists() else [])]
    board, cells = Board.load(given.board), [name.strip() for name in given.cells.split(";") if name.strip()]
    if unknown := set(cells) - {cell.name for cell in board.cells}:
        parser.error(f"the board has no cell {', '.join(sorted(unknown))}")
    parts = missing_parts(board, have, sources, cells)
    if given.root is None:
        writer = csv.writer(sys.stdout)
        writer.writerows([part.cell, part.seed] for part in parts)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    children = Children()
    before = signal.signal(signal.SIGTERM, children.stop)
    try:
        with shared_gpu():
            compute(parts, given, began, children)
    finally:
        signal.signal(signal.SIGTERM, before)
    if children.stopped:
        raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
