"""Carrying a study out in front of a person: said before, shown while it goes on, described when it is done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ffalm.config import StudyConfig
    from ffalm.outcome import StudyOutcome
    from ffalm.study import Layout


_COLUMNS = 9  # of the table of clients, as many as 80 signs have room for


class Stopped(Exception):
    """The user stopped a study; the message says how to go on."""


def carry_out(
    config: StudyConfig,
    folder: Path,
    console: Console,
    again: str,
    quiet: bool = False,
    clients: bool = True,
    ray: str | None = None,
    begin: Callable[[], None] | None = None,
) -> StudyOutcome:
    """Compute what the folder does not hold yet, and describe all of it; `again` is the command that goes on.

    Nothing is written before the study is known to be possible; `begin` is called then, to write what the caller
    wants kept. `ray` is the address of a cluster to compute on.
    """
    from ffalm import cluster, toml
    from ffalm import config as configs
    from ffalm.cli.progress import RunProgress
    from ffalm.describe import describe
    from ffalm.files import write_whole
    from ffalm.study import layout, plans, run_folder
    from ffalm.workers import outcomes, run_study

    spread = layout(config)
    if ray is not None:
        cluster.check(ray)
    left = [plan for plan in plans(config) if run_folder(config, folder, plan).outcome() is None]
    if not quiet:
        _introduce(console, config, spread, folder, len(left), clients)
    if begin is not None:
        begin()
    make_folder(folder)
    write_whole(folder / "config.toml", toml.dumps(configs.settings_of(config)))
    if left:
        with RunProgress(console, left, config.training.rounds, quiet) as progress:
            try:
                if ray is not None and not spread.engine.spreads:
                    cluster.run_on_cluster(config, folder, ray, progress)
                else:  # an engine that spreads by itself finds the cluster by this variable
                    os.environ.update({} if ray is None else {"RAY_ADDRESS": ray})
                    run_study(config, folder, spread, progress)
            except KeyboardInterrupt:
                raise Stopped(f"stopped; go on with: {again}") from None
    return describe(config, spread, outcomes(config, folder))


def make_folder(folder: Path) -> None:
    """Make a folder for results; a place where that cannot be is the user's to mend."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"The folder {folder} cannot be made ({reason}): name another with --out.") from None


def _introduce(console: Console, config: StudyConfig, spread: Layout, folder: Path, runs: int, clients: bool) -> None:
    """What is about to be run, and who owns what."""
    from ffalm.study import job_of, left_out, plans

    grid = plans(config)
    federation = job_of(config, grid[0]).federation
    names = ", ".join(contender.label for contender in config.contenders)
    done = f" ({len(grid) - runs} more are done already)" if runs < len(grid) else ""
    console.print(
        f"{names}: {runs} run(s) of {config.training.rounds} rounds on {federation.task.name}{done}; engine "
        f"{spread.engine.name} ({spread.reason}) in {spread.processes} process(es); results in {folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if clients:
        _show_clients(console, config.seeds[0], federation.summary())
        for note in (*left_out(config), *federation.notes):
            console.print(note, highlight=False, markup=False, soft_wrap=True)


def _show_clients(console: Console, seed: int, rows: list[dict[str, object]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Clients of seed {seed}", title_justify="left")
    columns = list(rows[0])
    for column in columns[:_COLUMNS]:
        table.add_column(escape(column), justify="right")
    shown = rows if len(rows) <= 20 else rows[:19]
    for row in shown:
        cells = (f"{100 * cell:.1f} %" if isinstance(cell, float) else str(cell) for cell in row.values())
        table.add_row(*map(escape, list(cells)[:_COLUMNS]))
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"... and {len(rows) - len(shown)} more clients", highlight=False)
    if len(columns) > _COLUMNS:
        console.print(f"... and {len(columns) - _COLUMNS} more groups, which the report shows", highlight=False)
