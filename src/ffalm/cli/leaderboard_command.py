"""`ffalm leaderboard`: every method on every data set at the same fairness bounds."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import listed, seeds_of
from ffalm.cli.output import print_json, print_results
from ffalm.cli.running import resumable, say
from ffalm.progress import RemainingTime

if TYPE_CHECKING:
    from ffalm.config import StudyConfig
    from ffalm.outcome import Record
    from ffalm.studies.grid import RunPlan
    from ffalm.studies.results import Study

_SECONDS_PER_LINE = 15.0


def leaderboard(
    board: Annotated[str, typer.Option(help="Board: tables, or a TOML file of your own.")] = "tables",
    root: Annotated[str | None, typer.Option(help="Folder with the files of Adult and COMPAS.")] = None,
    cells: Annotated[str | None, typer.Option(help="Cells to compute, semicolon-separated. Default: all.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, comma-separated. Default: all.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds, or a list. Default: the board's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run. Default: the board's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for all runs; what it holds is not computed again.")] = Path(
        "ffalm-results/leaderboard"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the standings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Print no progress.")] = False,
) -> None:
    """Rank all methods at fixed fairness bounds; the same command resumes one that was stopped."""
    from ffalm.leaderboard.board import Board
    from ffalm.leaderboard.leaderboard_report import overall, tidy, write_leaderboard
    from ffalm.leaderboard.play import play
    from ffalm.leaderboard.standings import standings
    from ffalm.studies.study import make_folder

    asked = [name.strip() for name in (cells or "").split(";") if name.strip()]
    chosen = Board.load(board, asked, listed(methods or ""))
    changes: dict[str, Any] = {} if seeds is None else {"seeds": seeds_of(seeds)}
    changes |= {} if rounds is None else {"training": {"rounds": rounds}, "checkpoint_every": max(1, rounds)}
    changes |= {} if workers is None else {"workers": workers}
    make_folder(out)
    command = shlex.join(["ffalm", *sys.argv[1:]])
    with resumable(command):
        played = play(chosen, out, changes, root, _Progress(len(chosen.cells), quiet, command))
    files = write_leaderboard(chosen, played, out, command)
    found = standings(played.entries)
    if as_json:
        print_json({"files": files, "left_out": played.left_out, "standings": tidy(found).records()})
    else:
        left_out = (f"Left out: {line}" for line in dict.fromkeys(played.left_out))
        print_results([overall(chosen, found)], [*left_out, f"Page: {files['leaderboard.md']}"])


class _Progress:
    """Trains a cell's study and prints its progress now and then."""

    def __init__(self, cells: int, quiet: bool, command: str) -> None:
        self._cells, self._quiet, self._command = cells, quiet, command
        self._seen: list[str] = []

    def __call__(self, cell: str, config: StudyConfig, folder: Path) -> Study:
        from ffalm.studies.study import begin

        self._seen += [] if cell in self._seen else [cell]
        optional = [entry.key for entry in config.entries]
        with begin(config, folder, optional, "share", self._command) as begun:
            self._rounds = len(begun.left) * config.training.rounds
            self._remaining, self._told = RemainingTime(self._rounds), time.monotonic()
            say(f"{cell} ({len(self._seen)} of {self._cells}): {len(begun.left)} runs to train", self._quiet)
            return begun.compute(self._count)

    def _count(self, plan: RunPlan, record: Record) -> None:
        now = time.monotonic()
        left = self._remaining.seconds(plan, record["round"], now)
        if left is not None and now - self._told > _SECONDS_PER_LINE:
            self._told = now
            done = 1 - self._remaining.rounds / self._rounds
            say(f"  {done:.0%}, about {left:.0f} s left for this cell", self._quiet)
