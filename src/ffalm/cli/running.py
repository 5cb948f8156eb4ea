"""A study on the terminal: what will run, the progress of its runs, and how to resume it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ffalm.cli.output import print_line, scores_text
from ffalm.errors import require
from ffalm.progress import RemainingTime

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ffalm.config import StudyConfig
    from ffalm.outcome import Record
    from ffalm.studies.execution import Listener
    from ffalm.studies.grid import RunPlan
    from ffalm.studies.results import Study
    from ffalm.studies.study import OpenStudy

_COLUMNS = 9  # columns of the table of clients, which usually fit into 80 characters
_REPEATED_AFTER = 0.05  # seconds until a signal that was dropped is sent again
_SECONDS_PER_LINE = 5.0
_SECONDS_PER_ENDED_RUN = 0.5  # so that a study of a thousand runs does not print a thousand lines


class Stopped(Exception):
    """The user stopped a study; the message says how to resume it."""


def run_shown(
    config: StudyConfig,
    command: str,
    values: Mapping[str, Any],
    optional: Collection[str] = (),
    parent: Path | None = None,
) -> Study:
    """Run a study to its end with its progress on the terminal; `values` are the command's flags.

    `parent` is the folder with which the command is resumed if the study is one of several in it.
    """
    from rich.console import Console

    from ffalm.studies.study import Existing, begin, new_folder
    from ffalm.studies.tracking import check_tracker, tracked

    check_tracker(values.get("track"))

    folder: Path | None = values["out"]
    require(not values["resume"] or folder is not None, "--resume needs the folder of the study: name it with --out.")
    name = f"{command}-{config.data.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = folder or (lambda: new_folder(Path("ffalm-results"), name))
    typed = shlex.join(["ffalm", *sys.argv[1:]])
    existing: Existing = "resume" if values["resume"] else "refuse"
    free_rate = bool(values.get("free_rate"))
    chosen = " and choosing a learning rate on held-out rows" if free_rate and config.target is not None else ""
    say(f"Loading the data{chosen} ...", values["quiet"])
    with begin(config, out, optional, existing, typed, values["ray"], free_rate) as begun:
        again = f"ffalm {command} --out {shlex.quote(str(parent or begun.folder))} --resume"
        with (
            Terminal(Console(stderr=True), begun, again, values["quiet"], clients=parent is None) as terminal,
            tracked(values.get("track"), begun.folder, config.training.rounds) as tracker,
        ):
            return begun.compute(terminal if tracker is None else _both(terminal, tracker))


def _both(first: Listener, second: Listener) -> Listener:
    def tell(plan: RunPlan, record: Record) -> None:
        first(plan, record)
        second(plan, record)

    return tell


def say(text: str, quiet: bool = False) -> None:
    """Print a message to standard error, unless `quiet`."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def resumable(again: str) -> Iterator[None]:
    """On Ctrl-C, SIGTERM and SIGHUP, end the block and report `again`, the command that resumes it."""
    with interrupting_signals():
        try:
            yield
        except KeyboardInterrupt:
            raise Stopped(f"stopped; resume with: {again}") from None


@contextmanager
def interrupting_signals(hang_up: bool = True) -> Iterator[None]:
    """SIGTERM, and with `hang_up` SIGHUP, which a closed terminal sends, raise `KeyboardInterrupt` in the block.

    A shell and the terminal may both send a signal. Only the first one counts, or the second would end the cleanup.
    Python drops what is raised in a destructor or in the callback of a weak reference, so that the block would go on: a
    signal that arrives there is sent again.
    """
    handlers: dict[int, Any] = {}
    repeated: list[threading.Timer] = []
    report_dropped = sys.unraisablehook

    def interrupt(number: int, *_: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        number = next(iter(getattr(dropped.exc_value, "args", ())), None)
        if not isinstance(dropped.exc_value, KeyboardInterrupt) or number not in handlers:
            report_dropped(dropped)
            return
        signal.signal(number, interrupt)
        repeated.append(threading.Timer(_REPEATED_AFTER, os.kill, (os.getpid(), number)))
        repeated[-1].start()

    sys.unraisablehook = repeat
    try:
        handlers.update({number: signal.signal(number, interrupt) for number in _catchable(hang_up)})
        yield
    finally:
        sys.unraisablehook = report_dropped
        for timer in repeated:
            timer.cancel()
        for number, before in handlers.items():
            signal.signal(number, before)


class Terminal:
    """Shows a study on a console: what will run, then its rounds, as bars on a terminal and as lines elsewhere.

    `again` is the command that resumes the study.
    """

    def __init__(
        self, console: Console, begun: OpenStudy, again: str, quiet: bool = False, clients: bool = True
    ) -> None:
        self._console, self._begun, self._quiet = console, begun, quiet
        self._rounds = begun.config.training.rounds
        self._left = len(begun.left) * self._rounds
        self._remaining = RemainingTime(self._left)
        self._printed = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[RunPlan, TaskID] = {}
        self._again, self._held = again, ExitStack()
        if not quiet:
            self._introduce(clients)

    def __enter__(self) -> Self:
        self._held.enter_context(resumable(self._again))
        if self._left and not self._quiet and self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[seen]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._all = self._bars.add_task("[bold]all rounds", total=self._left, seen="")
            self._held.enter_context(self._bars)
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def __call__(self, plan: RunPlan, record: Record) -> None:
        """Show one round of one run."""
        now, number = time.monotonic(), record["round"]
        left = self._remaining.seconds(plan, number, now)
        pause = _SECONDS_PER_ENDED_RUN if number == self._rounds else _SECONDS_PER_LINE
        if self._bars is not None:
            self._update(self._bars, plan, record)
        elif not self._quiet and (now - self._printed > pause or left == 0):
            self._printed = now
            ahead = "" if left is None else f", about {left:.0f} s left"
            self._print(f"{plan.title}: round {number}/{self._rounds}, {scores_text(record)}{ahead}")

    def _update(self, bars: Progress, plan: RunPlan, record: Record) -> None:
        from rich.markup import escape

        if plan not in self._tasks:
            self._tasks[plan] = bars.add_task(escape(plan.title), total=self._rounds, seen="")
            bars.update(self._all, advance=record["round"] - 1)  # rounds that were done before
        bars.update(self._tasks[plan], completed=record["round"], seen=scores_text(record))
        bars.update(self._all, advance=1)
        if record["round"] == self._rounds:
            bars.update(self._tasks[plan], visible=False)

    def _introduce(self, clients: bool) -> None:
        config, spread, record, left = self._begun.config, self._begun.spread, self._begun.record, len(self._begun.left)
        names = ", ".join(entry.label for entry in config.entries)
        done = f" ({len(record.runs) - left} more are done already)" if left < len(record.runs) else ""
        self._print(
            f"{names}: {left} run(s) of {self._rounds} rounds on {record.task['data']}{done}; engine "
            f"{spread.engines} in {spread.processes} process(es); results in {self._begun.folder}"
        )
        if clients:
            self._show_clients(config.seeds[0], record.clients)
            for note in (*(f"Left out: {one.reason}" for one in record.left_out), *record.data_notes):
                self._print(note)

    def _print(self, text: str) -> None:
        print_line(self._console, text)

    def _show_clients(self, seed: int, rows: list[dict[str, object]]) -> None:
        from ffalm.report.rendering import print_whole
        from ffalm.report.tables import Column, Section, Table, row

        names = list(rows[0])
        columns = [Column(names[0]), Column(names[1], "count"), *(Column(name, "percent", 1) for name in names[2:])]
        shown = rows if len(rows) <= 20 else rows[:19]
        section = Section([row(*list(one.values())[:_COLUMNS]) for one in shown])
        caption = "Labels and groups in percent of the client's rows."
        print_whole(self._console, Table(f"Clients of seed {seed}", columns[:_COLUMNS], [section], caption))
        if len(shown) < len(rows):
            self._print(f"... and {len(rows) - len(shown)} more clients")
        if len(names) > _COLUMNS:
            self._print(f"... and {len(names) - _COLUMNS} more groups, which the report shows")


def _catchable(hang_up: bool) -> list[signal.Signals]:
    """Signals that stop a command, except those that are already ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():
        return []
    names = ("SIGTERM", "SIGHUP") if hang_up else ("SIGTERM",)
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has no SIGHUP
    return [one for one in known if signal.getsignal(one) is signal.SIG_DFL]
