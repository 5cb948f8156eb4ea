"""A person who looks after a federation: starts again what has ended, by the documented commands alone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.federate.faults.faults import Scene
from tests.federate.faults.hosts import Host

_PAUSE = 2.0  # seconds between a command that failed and the next try


@dataclass
class Command:
    """A command that was given, and its words."""

    name: str
    arguments: tuple[object, ...]
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Operator:
    """Looks at the processes again and again; a command that fails is given again."""

    coordinator: Host
    sites: Sequence[Host]
    logs: Path
    under_way: dict[str, Command] = field(default_factory=dict)  # by machine, and "run"
    done: list[tuple[str, int, str]] = field(default_factory=list)  # command, exit code, last words
    _again: dict[str, float] = field(default_factory=dict)  # when to try again
    _given: int = 0
    _was_up: bool = False  # the coordinator, so that sites know where to go

    @property
    def scene(self) -> Scene:
        """What faults are done to."""
        return Scene(self.coordinator, self.sites, self.run_command())

    @property
    def folder(self) -> Path:
        """The federation."""
        return self.coordinator.folder

    def finished(self) -> bool:
        """Whether the run has come to its end, and the command that followed it too."""
        return any(name == "run" and code == 0 for name, code, _ in self.done)

    def run_command(self) -> int | None:
        """The process of the command `run`."""
        command = self.under_way.get("run")
        return None if command is None or command.process.poll() is not None else command.process.pid

    def look(self) -> None:
        """Start what is not there."""
        for who, command in list(self.under_way.items()):
            if command.process.poll() is not None:
                self._ended(who, command)
        coordinator = self.coordinator
        up = coordinator.process.pid() is not None
        self._was_up |= any(name == "coordinator" and not code for name, code, _ in self.done)
        if not up and "coordinator" not in self.under_way:
            self._give("coordinator", coordinator, "coordinator", self.folder, "--detach")
        for host in self.sites if self._was_up else ():
            if host.name not in self.under_way and host.process.pid() is None:
                self._give(host.name, host, "site", host.folder, "--detach")
        if up and "coordinator" not in self.under_way and "run" not in self.under_way and not self.finished():
            self._give("run", coordinator, "run", self.folder)

    def stop(self) -> int:
        """End everything by the command `stop`, on every machine; the largest exit code."""
        logs = self.logs / "stop.log"
        ends = [host.start(logs, "stop", host.folder) for host in self.sites]
        codes = [end.wait(120) for end in ends]
        return max(*codes, self.coordinator.start(logs, "stop", self.folder).wait(120))

    def close(self) -> None:
        """Kill the commands that are still under way."""
        for command in self.under_way.values():
            command.process.kill()
            command.process.wait()

    def _give(self, who: str, host: Host, *arguments: object) -> None:
        if time.monotonic() < self._again.get(who, 0.0):
            return
        self._given += 1
        log = self.logs / f"{self._given:03d}-{who}.log"
        self.under_way[who] = Command(str(arguments[0]), arguments, host.start(log, *arguments), log)

    def _ended(self, who: str, command: Command) -> None:
        del self.under_way[who]
        code = command.process.returncode
        words = command.log.read_text(encoding="utf-8", errors="replace").strip()
        self.done.append((command.name, code, words))
        if code:
            self._again[who] = time.monotonic() + _PAUSE
