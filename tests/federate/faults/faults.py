"""What may befall a federation: processes killed or stopped, disks full, cables pulled, clocks moved."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.federate.faults.hosts import Host

_SECONDS_TO_FIND = 8.0


@dataclass(frozen=True)
class Scene:
    """What faults are done to: the coordinator's machine, the sites' machines, and the command `run`."""

    coordinator: Host
    sites: Sequence[Host]
    run_command: int | None  # its process


@dataclass(frozen=True)
class Injected:
    """A fault that was done: to whom, and how it is taken back after so many seconds; 0 where it is not."""

    where: str
    seconds: float = 0.0
    undo: Callable[[], None] = lambda: None


Fault = Callable[[Scene, Random], Injected | None]
"""Does something; None where there was nothing to do it to."""

Find = Callable[[Scene, Random], tuple[str, list[int]]]
"""Whose processes are meant, by their numbers."""


def _with_words(host: Host, *words: str) -> list[int]:
    found = []
    for process in host.processes():
        with suppress(psutil.Error):
            if any(word in " ".join(process.cmdline()) for word in words):
                found.append(process.pid)
    return found


def _main(host: Host) -> tuple[str, list[int]]:
    pid = host.process.pid()
    return host.name, [] if pid is None else [pid]


def _fork_servers(host: Host) -> list[int]:
    """A site's process that has everything imported, and not those that it forked."""
    found = _with_words(host, "multiprocessing.forkserver")
    return [pid for pid in found if _parent(pid) not in found]


def _answers(host: Host) -> list[int]:
    found = _with_words(host, "multiprocessing.forkserver")
    return [pid for pid in found if _parent(pid) in found]


def _parent(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0


def _superlink(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return _main(scene.coordinator)


def _server_app(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return "coordinator", _with_words(scene.coordinator, "flwr-serverapp")


def _executor(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return "coordinator", _with_words(scene.coordinator, "flower-superexec")


def _command(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return "coordinator", [] if scene.run_command is None else [scene.run_command]


def _coordinator_machine(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return "coordinator", [*scene.coordinator.process.family(), *_command(scene, random)[1]]


def _site(scene: Scene, random: Random) -> tuple[str, list[int]]:
    return _main(random.choice(scene.sites))


def _site_machine(scene: Scene, random: Random) -> tuple[str, list[int]]:
    host = random.choice(scene.sites)
    return host.name, host.process.family()


def _fork_server(scene: Scene, random: Random) -> tuple[str, list[int]]:
    host = random.choice(scene.sites)
    return host.name, _fork_servers(host)


def _answer(scene: Scene, random: Random) -> tuple[str, list[int]]:
    """The process that computes an answer, as soon as there is one."""
    host = random.choice(scene.sites)
    deadline = time.monotonic() + _SECONDS_TO_FIND
    while time.monotonic() < deadline:
        found = _answers(host)
        if found:
            time.sleep(random.uniform(0, 0.3))
            return host.name, found
        time.sleep(0.02)
    return host.name, []


def _killing(find: Find) -> Fault:
    def fault(scene: Scene, random: Random) -> Injected | None:
        where, found = find(scene, random)
        return Injected(where) if _signal(found, signal.SIGKILL) else None

    return fault


def _stopping(find: Find, longest: float = 20.0) -> Fault:
    def fault(scene: Scene, random: Random) -> Injected | None:
        where, found = find(scene, random)
        if not _signal(found, signal.SIGSTOP):
            return None
        return Injected(where, random.uniform(1, longest), lambda: (_signal(found, signal.SIGCONT), None)[1])

    return fault


def _signal(pids: Sequence[int], number: int) -> int:
    """Send a signal; how many processes it reached."""
    reached = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def _full_disk_of_coordinator(scene: Scene, random: Random) -> Injected:
    scene.coordinator.fill_disk()
    return Injected("coordinator", random.uniform(1, 15), scene.coordinator.empty_disk)


def _full_disk_of_site(scene: Scene, random: Random) -> Injected:
    host = random.choice(scene.sites)
    host.fill_disk()
    return Injected(host.name, random.uniform(1, 15), host.empty_disk)


def _cut_site(scene: Scene, random: Random) -> Injected:
    host = random.choice(scene.sites)
    host.set_link(False)
    return Injected(host.name, random.choice((1, 5, 15, 40)), lambda: host.set_link(True))


def _cut_everybody(scene: Scene, random: Random) -> Injected:
    scene.coordinator.set_link(False)
    return Injected("coordinator", random.choice((1, 5, 15, 40)), lambda: scene.coordinator.set_link(True))


def _moving(of_site: bool, direction: int) -> Fault:
    def fault(scene: Scene, random: Random) -> Injected:
        host = random.choice(scene.sites) if of_site else scene.coordinator
        host.move_clock(direction * random.choice((3, 30, 600, 7200)))
        return Injected(host.name, random.uniform(2, 20), lambda: host.move_clock(0))

    return fault


FAULTS: dict[str, Fault] = {
    "kill: SuperLink": _killing(_superlink),
    "kill: process of the run": _killing(_server_app),
    "kill: SuperExec": _killing(_executor),
    "kill: command `run`": _killing(_command),
    "kill: coordinator's machine": _killing(_coordinator_machine),
    "kill: site's process": _killing(_site),
    "kill: site's machine": _killing(_site_machine),
    "kill: fork server": _killing(_fork_server),
    "kill: answer process": _killing(_answer),
    "stop: SuperLink": _stopping(_superlink),
    "stop: process of the run": _stopping(_server_app),
    "stop: command `run`": _stopping(_command),
    "stop: site's process": _stopping(_site),
    "stop: site's machine": _stopping(_site_machine, 60.0),
    "stop: fork server": _stopping(_fork_server),
    "stop: answer process": _stopping(_answer),
    "full disk: coordinator": _full_disk_of_coordinator,
    "full disk: site": _full_disk_of_site,
    "cut network: one site": _cut_site,
    "cut network: all sites": _cut_everybody,
    "clock: site ahead": _moving(True, 1),
    "clock: site behind": _moving(True, -1),
    "clock: coordinator ahead": _moving(False, 1),
    "clock: coordinator behind": _moving(False, -1),
}
