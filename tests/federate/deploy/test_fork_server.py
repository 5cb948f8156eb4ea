"""A SuperNode whose tasks are forks of a process that has everything imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.federate.deploy.machines import until

from ffalm.federate.deploy.processes import FlowerProcess

if sys.platform != "linux":
    pytest.skip("forks are used on Linux alone", allow_module_level=True)

#: Stands in for Flower: a SuperNode that starts two tasks as Flower does, by a command on its PATH, and a task.
FLOWER = """
import json, os, subprocess, sys, time
from ffalm.federate.deploy import fork_server

def preload():
    sys.modules["preloaded"] = sys

def entry(command):
    if command == "flower-supernode":
        print(json.dumps({"who": "node", "pid": os.getpid(), "told": sys.argv}), flush=True)
        for number in "12":
            subprocess.run(["flwr-clientapp", "--token", number, "--insecure"], check=True)
        time.sleep(60)

def task():
    print(json.dumps({"who": "task", "pid": os.getpid(), "told": sys.argv, "ready": "preloaded" in sys.modules}))
    if sys.argv[2] == "2":
        raise RuntimeError("a task that fails")

fork_server._preload, fork_server._entry, fork_server.client_task.main = preload, entry, task
fork_server.main()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[FlowerProcess]:
    folder = tmp_path / "a site's folder"
    folder.mkdir()
    started = FlowerProcess(folder, "supernode")
    started.start([sys.executable, "-c", FLOWER, str(started.home), "--superlink", "here"])
    yield started
    started.stop()
    assert started.family() == []


def _lines(process: FlowerProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in process.said().splitlines() if line.startswith("{")]


def test_each_task_is_a_process_of_its_own_with_everything_imported(process: FlowerProcess) -> None:
    until(lambda: len(_lines(process)) == 3 and "a task that fails" in process.said(), "both tasks", 20)
    node, *tasks = _lines(process)
    assert node["pid"] == process.pid()
    assert node["told"] == ["flower-supernode", "--superlink", "here"]
    assert sorted(str(task["told"]) for task in tasks) == [
        str(["flwr-clientapp", "--token", number, "--insecure"]) for number in "12"
    ]
    assert all(task["ready"] for task in tasks)
    assert len({line["pid"] for line in _lines(process)}) == 3
    until(lambda: len(process.family()) == 2, "the tasks are gone, the SuperNode and its helper are not", 10)


def test_the_helper_ends_when_its_supernode_is_killed(process: FlowerProcess) -> None:
    import os
    import signal

    until(lambda: len(_lines(process)) == 3, "both tasks", 20)
    pid = process.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: process.family() == [], "the helper ends by itself", 10)


def test_a_task_is_run_without_the_helper_where_it_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    from ffalm.federate.deploy import client_task, fork_server

    monkeypatch.setattr(client_task, "STARTED_ANEW", 'echo "ran itself: $*"')
    helper = subprocess.Popen([sys.executable, "-c", "pass"])
    until(lambda: "Z" in Path(f"/proc/{helper.pid}/status").read_text().split("State:")[1][:4], "it is dead", 20)
    tasks = fork_server._pipe(tmp_path)
    client_task.write_commands(tmp_path / "bin", fork_server._handing_over(tasks, helper.pid))
    command = [str(tmp_path / "bin" / client_task.COMMAND), "--token", "1"]
    for _ in ("not waited for", "gone"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        assert done.stdout == "ran itself: --token 1\n"
        helper.wait()


def test_a_heartbeat_goes_on_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")
    from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender

    from ffalm.federate.deploy import fork_server

    monkeypatch.setattr(HeartbeatSender, "_heartbeat", HeartbeatSender._heartbeat)
    fork_server.keep_heartbeats()

    def disk_full() -> bool:
        raise OSError("HTTP 500")

    for broken in (disk_full, lambda: False):
        with pytest.raises(HeartbeatFailure):
            HeartbeatSender(broken)._heartbeat()
    HeartbeatSender(lambda: True)._heartbeat()
