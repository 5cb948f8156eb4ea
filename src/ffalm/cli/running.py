"""What a person sees of a study: what is about to run, the progress of its runs, and how to resume it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ffalm.cli.progress import RunProgress
    from ffalm.config import StudyConfig
    from ffalm.execution import ExecutionPlan
    from ffalm.grid import RunPlan
    from ffalm.outcome import Record, StudyRecord

_COLUMNS = 9  # of the table of clients that fit on 80 columns


class Stopped(Exception):
    """The user stopped a study; the message says how to resume it."""


class Terminal:
    """Follows a study on a console; `again` is the command that resumes the study in a folder.

    `begin` is called when the study is known to be possible and nothing has run yet.
    """

    def __init__(
        self,
        console: Console,
        again: Callable[[Path], str],
        quiet: bool = False,
        clients: bool = True,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._console, self._again, self._quiet, self._clients, self._begin = console, again, quiet, clients, begin
        self._folder: Path | None = None
        self._progress: RunProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        if isinstance(error, KeyboardInterrupt) and self._folder is not None:
            raise Stopped(f"stopped; resume with: {self._again(self._folder)}") from None

    def begin(
        self, config: StudyConfig, spread: ExecutionPlan, record: StudyRecord, folder: Path, left: list[RunPlan]
    ) -> None:
        """Say what is about to run."""
        from ffalm.cli.progress import RunProgress

        self._folder = folder
        self._begin()
        if not self._quiet:
            self._introduce(config, spread, record, len(left))
        if left:
            self._progress = RunProgress(self._console, left, config.training.rounds, self._quiet)

    def __call__(self, plan: RunPlan, record: Record) -> None:
        """Show a round."""
        if self._progress is not None:
            self._progress(plan, record)

    def _introduce(self, config: StudyConfig, spread: ExecutionPlan, record: StudyRecord, left: int) -> None:
        names = ", ".join(entry.label for entry in config.entries)
        done = f" ({len(record.runs) - left} more are done already)" if left < len(record.runs) else ""
        self._print(
            f"{names}: {left} run(s) of {config.training.rounds} rounds on {record.task['data']}{done}; engine "
            f"{spread.engine.name} ({spread.reason}) in {spread.processes} process(es); results in {self._folder}"
        )
        if self._clients:
            self._show_clients(config.seeds[0], record.clients)
            for note in (*(f"Left out: {one.reason}" for one in record.left_out), *record.data_notes):
                self._print(note)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _show_clients(self, seed: int, rows: list[dict[str, object]]) -> None:
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
        self._console.print(table)
        if len(shown) < len(rows):
            self._print(f"... and {len(rows) - len(shown)} more clients")
        if len(columns) > _COLUMNS:
            self._print(f"... and {len(columns) - _COLUMNS} more groups, which the report shows")
