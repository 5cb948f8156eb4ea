"""Commands in forked processes: a new Python would spend seconds on importing torch, a fork spends none.

The process that forks has imported everything and computed nothing, so that its children may compute what they like.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

_SECONDS = 300.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NEEDED = (
    "pandas", "rich.console", "rich.progress", "rich.table", "torch.fx.experimental.symbolic_shapes", "PIL.Image",
    "ffalm.cli.output", "ffalm.cli.running", "ffalm.studies.cluster", "ffalm.data.census", "ffalm.data.decode",
    "ffalm.data.preprocessing", "ffalm.data.table", "ffalm.engines.loop", "ffalm.engines.stacked",
    "ffalm.studies.execution",
    "ffalm.report.study_tables", "ffalm.report.summary_text", "ffalm.studies.results",
    "ffalm.simulation", "ffalm.studies.study", "ffalm.studies.tracking", "ffalm.studies.workers",
)  # fmt: skip


def import_everything() -> None:
    """What the commands import on their way, and the tree of commands."""
    from tests.fuzzing.commands import command_tree

    for name in _NEEDED:
        importlib.import_module(name)
    command_tree()


@dataclass
class Child:
    """A command that runs in a process and session of its own; what it says, which is little, stays in a pipe."""

    pid: int
    output: int
    code: int | None = None
    _said: str | None = None

    @classmethod
    def start(cls, arguments: Sequence[str], most_bytes: int | None = None) -> Child:
        """Fork; `most_bytes` limits the size of every file that is written, as a full disk would."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _become(list(arguments), writing, most_bytes)
        os.close(writing)
        os.set_blocking(reading, False)
        return cls(pid, reading)

    def running(self) -> bool:
        """Whether it has not ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self) -> int | None:
        """Its exit code, negative for a signal; None where it hangs, and then it is killed."""
        until = time.monotonic() + _SECONDS
        while self.running():
            if time.monotonic() > until:
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.code = -signal.SIGKILL
                return None
            time.sleep(0.002)
        return self.code

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal, to the process or its whole group; it may have ended."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def said(self) -> str:
        """What it wrote, once it has ended."""
        if self._said is None:
            with open(self.output, "rb") as file:
                self._said = (file.read() or b"").decode("utf-8", "replace")
        return self._said


def _become(arguments: list[str], output: int, most_bytes: int | None) -> None:
    """In the child: run the command and end with its exit code; the report, which draws charts, is left out."""
    import resource

    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the command begins
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        from tests.fuzzing.commands import command_tree

        from ffalm import cli

        unwritten: Any = patch("ffalm.studies.results.Study.write_report", lambda *_: {})
        with unwritten, patch("typer.main.get_command", lambda _: command_tree()):
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            except KeyboardInterrupt:  # before the command begins, where `ffalm.__main__` ends with this code
                code = 130
                return
            code = cli.run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
