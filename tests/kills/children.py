"""Commands in forked processes: a new Python would spend seconds on importing torch, a fork spends none.

The process that forks has imported everything and computed nothing, so that its children may compute what they like.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

_SECONDS = 300.0


def import_everything() -> None:
    """What the commands import on their way."""
    import pandas  # noqa: F401
    import rich.console
    import rich.progress  # noqa: F401
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    import ffalm.cli
    import ffalm.cli.running
    import ffalm.data.census
    import ffalm.execution
    import ffalm.results
    import ffalm.simulation
    import ffalm.study  # noqa: F401


@dataclass
class Child:
    """A command that runs in a process and session of its own; what it says goes to a file."""

    pid: int
    log: Path
    code: int | None = None

    @classmethod
    def start(cls, arguments: Sequence[str], log: Path, most_bytes: int | None = None) -> Child:
        """Fork; `most_bytes` limits the size of every file that is written, as a full disk would."""
        pid = os.fork()
        if pid == 0:
            _become(list(arguments), log, most_bytes)
        return cls(pid, log)

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
        """What it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


def _become(arguments: list[str], log: Path, most_bytes: int | None) -> None:
    """In the child: run the command and end with its exit code; the report, which draws charts, is left out."""
    import resource

    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        from ffalm import cli

        unwritten: Any = patch("ffalm.results.Study.write_report", lambda *_: {})
        with unwritten:
            code = cli.run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
