"""Flower's processes on one machine: started, recognised and ended by the folder they belong to.

Each folder (the coordinator's, a site's) has one main process with a pid file and a log; Flower starts more processes
below it, some detached. All have the folder's mark in an environment variable, so that a process found by its pid is
known to be ours before it is ended, and none is left behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from ffalm.errors import UserError, require
from ffalm.federate.deploy.process_log import environment_of, rotate
from ffalm.federate.service_settings import Logs
from ffalm.system.file_locks import wait_for_lock
from ffalm.system.quiet import QUIET

_SECONDS_TO_END = 12.0
_SECONDS_TO_BE_SEEN = 10.0
_OURS = {**QUIET, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "PYTHONUNBUFFERED": "1"}


def executable(name: str) -> str:
    """The path of a command in this Python's environment, even if that is not in PATH."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise UserError(f"The command {name} is missing beside {sys.executable}: pip install 'ffalm[flower]'.")
    return path


def environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process: no telemetry, no installing, one thread, no proxy for loopback."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    own = ["127.0.0.1", "localhost"]
    without_proxy = ",".join([*filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY")]), *own])
    return {
        "OMP_NUM_THREADS": "1",
        **inherited,
        **_OURS,
        "FLWR_HOME": str(home),
        "TMPDIR": str(temporary(home)),
        MARK: mark(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "NO_PROXY": without_proxy,
        "no_proxy": without_proxy,
    }


def mark(home: Path) -> str:
    """The mark of all processes of a home."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:24]


def temporary(home: Path) -> Path:
    """The temporary folder of a home's processes, where killed ones leave files behind.

    It is outside the home and has a short name, since the path of a socket may have at most 107 bytes.
    """
    return Path(tempfile.gettempdir()) / f"ffalm-{mark(home)[:8]}"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FlowerProcess:
    """The main process of a folder, with all that Flower starts below it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home = folder.resolve() / "home"
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None  # if this command started it
        self._said = 0  # where this process's output begins in the log

    def start(self, command: Sequence[str], logs: Logs | None = None) -> None:
        """Start the process, apart from this one; a folder has one at a time."""
        logs = logs or Logs()
        self.home.mkdir(parents=True, exist_ok=True)
        with self._alone() as pid_file:
            self._require_none()
            rotate(self.log, logs)
            _make_private(temporary(self.home))
            with open(self.log, "ab") as log:
                self._said = log.tell()
                self._child = subprocess.Popen(
                    command,
                    env={**environment(self.home), **environment_of(self.log, logs)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            pid_file.truncate(0)
            pid_file.write(f"{self._child.pid}\n")
            self._until_seen(self._child)

    def clear(self) -> None:
        """End what a killed process left behind; refused if the process itself runs, whoever started it."""
        with self._alone():
            self._require_none()
            self._end()
            shutil.rmtree(temporary(self.home), ignore_errors=True)

    def pid(self) -> int | None:
        """The pid of the main process; None once it has ended, even if another process has that pid."""
        if self._child is not None and self._child.poll() is None:
            return self._child.pid  # one's own child is known before it can be looked at
        try:
            pid = int(self._pid_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return pid if mark_of(find(pid)) == mark(self.home) else None

    def said(self) -> str:
        """Its output in the log since this command started it."""
        if not self.log.exists():
            return ""
        with open(self.log, "rb") as log:
            log.seek(self._said if self._said <= os.fstat(log.fileno()).st_size else 0)  # it may have been rotated
            return log.read().decode("utf-8", "replace")

    def wait(self, ready: Callable[[str], bool], seconds: float) -> bool:
        """Whether its output became `ready` in time, and before it ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.pid() is None
            if ready(self.said()):
                return True
            if ended:
                return False
            time.sleep(0.1)
        return False

    def join(self, who: str) -> None:
        """Return when the main process, started by this command, was told to end; raises if it failed."""
        assert self._child is not None
        code = self._child.wait()
        self.stop()
        require(code in (0, -signal.SIGTERM), f"{who} ended unexpectedly (code {code}): see {self.log}.")

    def stop(self) -> bool:
        """End the process and all below it, at first by SIGTERM; whether any was running."""
        was_running = self._end()
        if self._pid_file.exists() or temporary(self.home).exists():
            with self._alone():
                if self.pid() is None:  # no other command has started one since
                    shutil.rmtree(temporary(self.home), ignore_errors=True)
                    self._pid_file.unlink(missing_ok=True)
        return was_running

    def _end(self) -> bool:
        main, known = self.pid(), self._family()
        told = set[psutil.Process]()
        deadline = time.monotonic() + _SECONDS_TO_END
        while left := self._left(known):
            first = [process for process in left if process.pid == main] or left  # its descendants after it has ended
            for process in left if time.monotonic() > deadline else first:
                with suppress(psutil.Error):
                    if time.monotonic() > deadline:
                        process.kill()
                    elif process not in told:
                        told.add(process)
                        process.terminate()
            time.sleep(0.05)
        return bool(known)

    @contextmanager
    def _alone(self) -> Iterator[TextIO]:
        """The pid file, while no other command starts a process of this folder."""
        while True:
            with open(self._pid_file, "a+", encoding="utf-8") as pid_file:
                wait_for_lock(pid_file)  # nobody holds it for longer than a start or an end takes
                if self._is_there(pid_file):
                    yield pid_file
                    return

    def _is_there(self, pid_file: TextIO) -> bool:
        """Whether this is still the file at its path; a command that ends a process removes it."""
        try:
            return os.path.samestat(os.fstat(pid_file.fileno()), self._pid_file.stat())
        except FileNotFoundError:
            return False

    def _require_none(self) -> None:
        running = self.pid()
        require(running is None, f"It is running already, as process {running}; its log is {self.log}.")

    def _until_seen(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until other commands can read the mark: a program shows no variables while it is loaded."""
        deadline = time.monotonic() + _SECONDS_TO_BE_SEEN
        while child.poll() is None and time.monotonic() < deadline:
            if mark_of(find(child.pid)) is not None:
                return
            time.sleep(0.002)

    def family(self) -> list[int]:
        """Every living process of this folder."""
        return sorted(process.pid for process in self._family())

    def _family(self) -> set[psutil.Process]:
        if self._child is not None:
            self._child.poll()  # a child that has ended keeps its number until it is waited for
        return family(mark(self.home))

    def _left(self, known: set[psutil.Process]) -> list[psutil.Process]:
        """The running processes of the folder: those known before, even if detached since, and new ones."""
        known |= self._family()
        return [process for process in known if lives(process)]


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner may enter; refused if somebody else made one with that name."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if sys.platform == "win32":
        return
    found = folder.lstat()
    require(
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077,
        f"The folder {folder} is not this user's own: remove it, or set TMPDIR to another folder.",
    )


#: The environment variable with the mark of the folder that a process belongs to.
MARK = "FFALM_FEDERATE"


def mark_of(process: psutil.Process | None) -> str | None:
    """The mark of a process; None if it has none, has ended, or its environment cannot be read."""
    with suppress(psutil.Error, OSError):
        return None if process is None or not lives(process) else process.environ().get(MARK)
    return None


def find(pid: int) -> psutil.Process | None:
    """The process with this pid."""
    with suppress(psutil.Error, ValueError, OverflowError):
        return psutil.Process(pid)
    return None


def lives(process: psutil.Process) -> bool:
    """Whether this process, not a later one with the same pid, still runs."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def family(mark: str) -> set[psutil.Process]:
    """All processes with this mark and their descendants, since some of Flower's hide their environment."""
    marked = {process for process in psutil.process_iter() if mark_of(process) == mark}
    found = set(marked)
    for process in marked:
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return {process for process in found if lives(process)}
