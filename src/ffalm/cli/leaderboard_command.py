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
from ffalm.errors import require
from ffalm.progress import RemainingTime

if TYPE_CHECKING:
    from ffalm.config import StudyConfig
    from ffalm.outcome import Record
    from ffalm.studies.grid import RunPlan
    from ffalm.studies.results import Study

_SECONDS_PER_LINE = 15.0


def leaderboard(
    board: Annotated[str, typer.Option(help="Board: tables, faces, or a TOML file of your own.")] = "tables",
    root: Annotated[
        str | None,
        typer.Option(help="Folder with the files of the board's data sets (Adult, COMPAS, UTKFace, CelebA)."),
    ] = None,
    cells: Annotated[str | None, typer.Option(help="Cells to compute, semicolon-separated. Default: all.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, comma-separated. Default: all.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds, or a list. Default: the board's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run. Default: the board's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.")] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated choices.csv or .csv.gz files of parts of the board, to join and rank without "
            "training. Default: none."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for all runs; what it holds is not computed again.")] = Path(
        "ffalm-results/leaderboard"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the standings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:
    """Rank all methods at fixed fairness bounds; the same command resumes one that was stopped."""
    from ffalm.leaderboard.board import Board
    from ffalm.leaderboard.board_runs import run_board
    from ffalm.leaderboard.leaderboard_report import overall, tidy, write_leaderboard
    from ffalm.leaderboard.standings import standings
    from ffalm.leaderboard.stored_choices import join_choices
    from ffalm.studies.study import make_folder

    training = {"--rounds": rounds, "--workers": workers, "--root": root}
    given = [flag for flag, value in training.items() if value is not None]
    require(
        choices is None or not given,
        f"--choices and {' and '.join(given)} exclude each other: stored choices are ranked without training.",
    )
    asked = [name.strip() for name in (cells or "").split(";") if name.strip()]
    chosen = Board.load(board, asked, listed(methods or ""))
    picked = None if seeds is None else seeds_of(seeds)
    changes: dict[str, Any] = {} if picked is None else {"seeds": picked}
    changes |= {} if rounds is None else {"training": {"rounds": rounds}, "checkpoint_every": max(1, rounds)}
    changes |= {} if workers is None else {"workers": workers}
    command = shlex.join(["ffalm", *sys.argv[1:]])
    if choices is None:
        make_folder(out)
        with resumable(command):
            result = run_board(chosen, out, changes, root, _Progress(len(chosen.cells), quiet, command))
    else:
        result = join_choices(chosen, _stored(choices, out), bool(asked), bool(listed(methods or "")), picked)
        make_folder(out)
    files = write_leaderboard(chosen, result, out, command)
    found = standings(result.choices)
    if as_json:
        print_json({"files": files, "left_out": result.left_out, "standings": tidy(found).records()})
    else:
        left_out = (f"Left out: {line}" for line in dict.fromkeys(result.left_out))
        print_results([overall(chosen, found)], [*left_out, f"Page: {files['leaderboard.md']}"])


def _stored(choices: str, out: Path) -> list[Path]:
    """The files of choices; a file that the joined choices would replace is refused, since it may hold more."""
    files = [Path(name) for name in listed(choices)]
    require(bool(files), "--choices takes one file of choices or several, comma-separated; got none.")
    written = out / "choices.csv"
    replaced = any(file.exists() and written.exists() and file.samefile(written) for file in files)
    require(not replaced, f"The joined choices would replace {str(written)!r}: name another folder with --out.")
    return files


class _Progress:
    """Trains a cell's study and prints its progress every few seconds."""

    def __init__(self, cells: int, quiet: bool, command: str) -> None:
        self._cells, self._quiet, self._command = cells, quiet, command
        self._seen: list[str] = []

    def __call__(self, cell: str, config: StudyConfig, folder: Path) -> Study:
        from ffalm.studies.study import begin

        self._seen += [] if cell in self._seen else [cell]
        optional = [entry.key for entry in config.entries]
        with begin(config, folder, optional, "share", self._command) as begun:
            self._rounds = len(begun.left) * config.training.rounds
            self._remaining, self._printed = RemainingTime(self._rounds), time.monotonic()
            say(f"{cell} ({len(self._seen)} of {self._cells}): {len(begun.left)} runs to train", self._quiet)
            return begun.compute(self._count)

    def _count(self, plan: RunPlan, record: Record) -> None:
        now = time.monotonic()
        left = self._remaining.seconds(plan, record["round"], now)
        if left is not None and now - self._printed > _SECONDS_PER_LINE:
            self._printed = now
            done = 1 - self._remaining.rounds / self._rounds
            say(f"  {done:.0%}, about {left:.0f} s left for this cell", self._quiet)
