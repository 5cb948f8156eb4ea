"""Progress of runs: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ffalm.grid import RunPlan
from ffalm.outcome import Record

_SECONDS_A_LINE = 5.0


class RunProgress:
    """Shows rounds as they are done; nothing at all when quiet."""

    def __init__(self, console: Console, grid: list[RunPlan], rounds: int, quiet: bool) -> None:
        self._console, self._rounds = console, rounds
        self._bars = None
        self._lines = not quiet and not console.is_terminal
        self._left = len(grid) * rounds
        self._began = time.monotonic()
        self._done = 0
        self._said = self._began
        self._tasks: dict[RunPlan, TaskID] = {}
        if not quiet and console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[seen]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._all = self._bars.add_task("[bold]all rounds", total=self._left, seen="")
            self._bars.start()

    def stop(self) -> None:
        """Show nothing more."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, plan: RunPlan, record: Record) -> None:
        """Show one round of one run."""
        self._done += 1
        if self._bars is not None:
            self._update_bars(self._bars, plan, record)
        elif self._lines and self._worth_a_line(record["round"]):
            self._said = time.monotonic()
            left = (self._left - self._done) * (time.monotonic() - self._began) / self._done
            self._console.print(
                f"{plan.title}: round {record['round']}/{self._rounds}, {_scores(record)}, about {left:.0f} s left",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def _update_bars(self, bars: Progress, plan: RunPlan, record: Record) -> None:
        if plan not in self._tasks:
            self._tasks[plan] = bars.add_task(escape(plan.title), total=self._rounds, seen="")
            skipped = record["round"] - 1
            bars.update(self._all, advance=skipped)
        bars.update(self._tasks[plan], completed=record["round"], seen=_scores(record))
        bars.update(self._all, advance=1)
        if record["round"] == self._rounds:
            bars.update(self._tasks[plan], visible=False)

    def _worth_a_line(self, round: int) -> bool:
        """A run's end always, and something every few seconds."""
        return round == self._rounds or time.monotonic() - self._said > _SECONDS_A_LINE


def _scores(record: Record) -> str:
    """Accuracy and gaps on the validation part, in percent."""
    shown = [("accuracy", "acc"), ("dpd", "DPD"), ("eod", "EOD")]
    return "  ".join(f"{short} {100 * record[name]:.1f}" for name, short in shown if name in record)
