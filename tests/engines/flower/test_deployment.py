"""A federation of real processes on loopback: every question is answered for, whatever happens to a site."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffalm.engines.flower.engine import QUIET

PROJECT = """
[project]
name = "small"
version = "0.1.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "tests.engines.flower.deployed:server"
clientapp = "tests.engines.flower.deployed:client"
[tool.flwr.app.config]
folder = ""
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start one of Flower's commands with a home of its own; all are gone at the end, with whatever they started."""
    started: list[subprocess.Popen[bytes]] = []

    def run(home: str, command: str, *flags: str) -> subprocess.Popen[bytes]:
        (tmp_path / home).mkdir(exist_ok=True)
        environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(tmp_path / home),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # for what Flower starts
        }
        with (tmp_path / f"{home}-{command}.log").open("wb") as log:
            program = str(Path(sys.executable).parent / command)
            process = subprocess.Popen(
                [program, *flags], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    yield run
    for process in reversed(started):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def until(happened: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def brought_up(start: Start, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """A SuperLink and two SuperNodes on loopback, and the run of the app submitted."""
    port = free_port()
    start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    until(lambda: listening(port), 60)
    nodes = {}
    for site in ("north", "south"):
        flags = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", str(free_port())]
        told = f'site="{site}" folder="{folder}"'
        nodes[site] = start(site, "flower-supernode", *flags, "--node-config", told)
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(PROJECT)
    where = f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (folder / "link" / "config.toml").write_text(where)
    submitted = start("link", "flwr", "run", str(folder / "app"), "here", "-c", f'folder="{folder}"')
    assert submitted.wait(timeout=60) == 0, (folder / "link-flwr.log").read_text()
    return nodes


@pytest.mark.slow
def test_a_server_learns_what_became_of_every_question_to_real_sites(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'ffalm[flower]'")
    nodes = brought_up(start, tmp_path)
    until((tmp_path / "asleep").exists, 180)
    nodes["south"].terminate()
    until((tmp_path / "end.json").exists, 120)
    log: list[Any] = json.loads((tmp_path / "end.json").read_text())
    both = ["north", "south"]
    assert [said["facts"]["site"] for said in log[0:2]] == both
    assert [(said["exact"], said["shape"]) for said in log[0:2] + log[2]] == [(True, [])] * 4
    assert [said["facts"] for said in log[2]] == [{"do": "echo", "asked": "train", "site": site} for site in both]
    assert log[3][1] == {"kind": "failed", "reason": "The file is empty.", "trace": ""}
    assert log[4][0]["kind"] == "failed" and "ValueError" in log[4][0]["reason"] and "Jane" not in str(log[4][0])
    assert log[4][1] == {"kind": "late", "reason": "The site did not answer within 25 seconds.", "trace": ""}
    assert [said["facts"]["do"] for said in log[5]] == ["echo", "echo"]  # and not the late answer of the round before
    north, south, seconds, gone = log[6]
    assert north["facts"]["asked"] == "score"
    assert south["kind"] == "lost" and gone
    assert seconds < 50
