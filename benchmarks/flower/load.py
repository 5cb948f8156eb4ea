"""Many sites on one machine: rounds a minute, memory and bytes of `ffalm federate` and of a plain Flower FedAvg app.

    python benchmarks/flower/load.py [--sites 20] [--rounds 4] [--write]

Ours is the real thing: TLS, node keys, agreed encoding, validation at the sites, FFALM. The plain app runs without TLS
or keys and only trains. Both have the same small model and generated people. Memory is the largest sum, over all
processes of a federation, of what each holds for itself and its share of what they share (PSS).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from rounds import deploy, ends_of, prepare, sizes  # noqa: E402

MARK = "FFALM_LOAD_TEST"


@dataclass(frozen=True)
class Figures:
    """What a federation needed."""

    seconds: list[float]  # of each round but the first
    start: float  # seconds until the first round was done
    peak_mb: float
    processes: int

    def line(self, name: str, size: int, sites: int) -> str:
        """A line of the table."""
        typical = statistics.median(self.seconds)
        cells = [name, f"{60 / typical:.1f}", f"{typical:.1f}", f"{self.start:.0f}", f"{self.peak_mb:,.0f}"]
        return f"| {' | '.join([*cells, str(self.processes), f'{size * sites:,}'])} |"


class Watch:
    """Looks every other second at the memory of all processes that carry the mark of this test."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.peak_mb, self.processes = 0.0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(2.0):
            held = [size for entry in Path("/proc").glob("[0-9]*") if (size := self._pss(entry))]
            if sum(held) / 1024 > self.peak_mb:
                self.peak_mb, self.processes = sum(held) / 1024, len(held)

    def _pss(self, entry: Path) -> int:
        with suppress(OSError, ValueError):
            if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                lines = (entry / "smaps_rollup").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return 0


def plain(sites: int, rounds: int) -> tuple[Figures, dict[str, int]]:
    """A plain Flower app on a SuperLink and its SuperNodes."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        prepare(where, sites, "mlp", rounds)
        os.environ[MARK] = name
        began = time.time()
        with Watch(name) as seen:
            deploy(where, "plain")
        del os.environ[MARK]
        ends = ends_of(where)
        size = sizes(where)
    took = [after - before for before, after in itertools.pairwise(ends)]
    return Figures(took, ends[0] - began, seen.peak_mb, seen.processes), size


def ours(sites: int, rounds: int) -> Figures:
    """`ffalm federate`, as a user starts it."""
    command = [sys.executable, "-c", "from ffalm.cli import main; main()", "federate"]
    with tempfile.TemporaryDirectory() as name:
        folder = f"{name}/federation"
        environment = {**os.environ, MARK: name}
        asked = ["--demo", "census", "--sites", str(sites), "--rounds", str(rounds)]
        subprocess.run([*command, "init", folder, *asked], env=environment, check=True)
        began = time.time()
        with Watch(name) as seen:
            subprocess.run([*command, "run", folder, "--local"], env=environment, check=True)
        history = Path(folder, "run", "history.jsonl").read_text(encoding="utf-8").splitlines()
        took = [json.loads(line)["seconds"] for line in history]
        first = Path(folder, "run", "config.toml").stat().st_mtime  # written as the coordinator begins
    return Figures(took[1:], first - began + took[0], seen.peak_mb, seen.processes)


def main() -> None:
    """Measure both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    asked = parser.parse_args()
    mine = ours(asked.sites, asked.rounds)
    theirs, size = plain(asked.sites, asked.rounds)
    table = "\n".join(
        [
            "| | rounds a minute | s / round | s to the first round | peak MB (PSS) | processes | bytes / round |",
            "|---|---:|---:|---:|---:|---:|---:|",
            mine.line("ffalm federate, FFALM", size["ffalm"], asked.sites),
            theirs.line("plain Flower, FedAvg", size["plain"], asked.sites),
        ]
    )
    print(table)
    if asked.write:
        from results import machine, publish

        about = f"`python benchmarks/flower/load.py --sites {asked.sites} --rounds {asked.rounds}`"
        publish(f"{asked.sites} sites on one machine", f"{about}; {machine()}\n\n{table}")


if __name__ == "__main__":
    main()
