"""Runs begin even where the SuperExec died, or the machine is slow."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from flwr.supercore.corestate import sql_corestate
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan

from ffalm.federate.deploy import superlink_state


def test_a_superexec_that_dies_is_started_again_until_the_superlink_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    def start(lifespan: Any) -> None:
        lifespan.superexec_process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append(lifespan.superexec_process)

    monkeypatch.setattr(superlink_state, "_PAUSE", 0.01)
    monkeypatch.setattr(SuperLinkLifespan, "_start_superexec_if_needed", start)
    superlink_state.restart_executor()
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


def test_a_run_s_process_has_minutes_to_start_and_one_that_falls_silent_is_noticed_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interval, patience = "HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"
    known = vars(sql_corestate)
    for name in (interval, patience):
        monkeypatch.setitem(known, name, known[name])
    silence = known[patience] * known[interval]
    superlink_state.allow_slow_starts()
    assert known[interval] == 180
    assert known[patience] * known[interval] == silence
    source = inspect.getsource(sql_corestate)
    assert source.count(f"timedelta(seconds={interval})") == 1
    assert source.count(f"{patience} * {interval}") == source.count(f"{patience} *") == 2
