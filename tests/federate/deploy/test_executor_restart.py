"""A SuperExec that dies is started again, one that the SuperLink ended is not."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from flwr.superlink.cli.flower_superlink import SuperLinkLifespan

from ffalm.federate.deploy import executor_restart


def test_a_superexec_that_dies_is_started_again_until_the_superlink_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    def start(lifespan: Any) -> None:
        lifespan.superexec_process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append(lifespan.superexec_process)

    monkeypatch.setattr(executor_restart, "_PAUSE", 0.01)
    monkeypatch.setattr(SuperLinkLifespan, "_start_superexec_if_needed", start)
    executor_restart.restart_executor()
    lifespan = SimpleNamespace(superexec_process=None)
    SuperLinkLifespan._start_superexec_if_needed(lifespan)  # type: ignore[arg-type]
    started[0].kill()
    deadline = time.monotonic() + 30
    while len(started) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lifespan.superexec_process is started[1]
    lifespan.superexec_process = None
    started[1].kill()
    started[1].wait()
    time.sleep(0.05)
    assert len(started) == 2
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
