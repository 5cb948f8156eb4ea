"""Machines of a federation on one computer, each with its own network, disk and wall clock, by Linux namespaces.

Everything happens in namespaces of the driver's own: when it ends, however it ends, the kernel ends all processes and
takes networks and disks away. Nothing is reachable from outside and nothing outside is changed.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from ffalm.federate.deploy.processes import FlowerProcess

COORDINATOR_ADDRESS = "10.201.0.1"
_BRIDGE = "sites"
_DISK = "48m"
_INSIDE = "FAULTS_INSIDE"
_UNSHARE = (
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)
_TOOLS = ("unshare", "ip", "mount", "cc", "bash")


def obstacle() -> str | None:
    """Why such machines cannot be made here; None where they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs the commands {', '.join(missing)}"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    return "needs the right to make namespaces (root)" if tried.returncode else None


def enter(module: str, arguments: Sequence[str]) -> int | None:
    """Run a module in new namespaces and return its exit code; None where this process is in them already."""
    if _INSIDE in os.environ:
        return None
    inner = '"$@" & wait $!'  # bash, as the first process, reaps orphans
    command = [*_UNSHARE, "bash", "-c", inner, "bash", sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


def prepare() -> None:
    """The network of the coordinator's machine, to which sites can be connected."""
    os.makedirs("/run/netns", exist_ok=True)
    _do("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", _BRIDGE, "type", "bridge")
    _do("ip", "addr", "add", f"{COORDINATOR_ADDRESS}/16", "dev", _BRIDGE)
    _do("ip", "link", "set", _BRIDGE, "up")


def disk(folder: Path) -> None:
    """Mount a small disk of its own at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _do("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder))


def remove_disks(folder: Path) -> None:
    """Take the disks at a folder and below away."""
    subprocess.run(["umount", "--recursive", "--lazy", str(folder)], capture_output=True, check=False)


class Host:
    """One machine: the folder on its disk, its processes, and what may befall them."""

    _numbers = itertools.count(2)

    def __init__(self, name: str, folder: Path, scratch: Path, process: FlowerProcess, library: Path) -> None:
        self.name, self.folder, self.process = name, folder, process
        self.temporary = scratch / name / "tmp"
        self.temporary.mkdir(parents=True)
        clock = scratch / f"clock-{name}"
        clock.write_bytes(bytes(8))
        with open(clock, "r+b") as file:
            self._clock = mmap.mmap(file.fileno(), 8)
        self._environment = {"FAULT_CLOCK": str(clock), "LD_PRELOAD": str(library), "TMPDIR": str(self.temporary)}
        self._link = ""

    def connect(self) -> None:
        """Give it a network of its own, joined to the coordinator's; without, it is the coordinator's machine."""
        number = next(self._numbers)
        self._link = f"site{number}"
        _do("ip", "netns", "add", self._link)
        _do("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._link)
        _do("ip", "link", "set", self._link, "master", _BRIDGE, "up")
        _do("ip", "-n", self._link, "link", "set", "lo", "up")
        _do("ip", "-n", self._link, "addr", "add", f"10.201.{number // 250}.{number % 250}/16", "dev", "eth0")
        _do("ip", "-n", self._link, "link", "set", "eth0", "up")

    def disconnect(self) -> None:
        """Take its network away."""
        if self._link:
            _do("ip", "netns", "del", self._link)

    def start(self, log: Path, *arguments: object) -> subprocess.Popen[bytes]:
        """A command of `ffalm federate` on this machine, whose words go to a log."""
        prefix = ["ip", "netns", "exec", self._link] if self._link else []
        command = [*prefix, sys.executable, "-m", "ffalm", "federate", *map(str, arguments)]
        with open(log, "ab") as file:
            return subprocess.Popen(
                command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All processes of its folder."""
        found = []
        for pid in self.process.family():
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        return found

    def set_link(self, up: bool) -> None:
        """Plug its network cable in, or pull it."""
        _do("ip", "link", "set", self._link or _BRIDGE, "up" if up else "down")

    def fill_disk(self) -> None:
        """Leave no byte free on its disk."""
        with open(self._filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def empty_disk(self) -> None:
        """Free that space again."""
        self._filler.unlink(missing_ok=True)

    def move_clock(self, seconds: int) -> None:
        """Let its wall clock be so many seconds ahead of the real time."""
        self._clock[:] = struct.pack("q", seconds)

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


def clock_library(folder: Path) -> Path:
    """Compile the library by which processes see another wall clock."""
    target = folder / "wall_clock.so"
    _do("cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(Path(__file__).with_name("wall_clock.c")), "-ldl")
    return target


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
