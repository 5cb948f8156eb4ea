"""Ray, which listens on every interface, lets nobody in but the simulation that started it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'ffalm[flower]'")
pytest.importorskip("ray", reason="Flower is not installed: pip install 'ffalm[flower]'")

from ffalm.engines.flower.simulated import own_token

STRANGER = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)
print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 1).remote()))
"""

#: A process of its own, since Ray leaves files open.
SESSION = f"""
import os, subprocess, sys, ray
from ffalm.engines.flower.simulated import ray_session

with ray_session(1):
    print("own task", ray.get(ray.remote(lambda: 1).remote()))
    known = {{name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}}
    for token in ({{}}, {{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}}):
        command = [sys.executable, "-W", "ignore", "-c", {STRANGER!r}, ray.get_runtime_context().gcs_address]
        done = subprocess.run(command, env={{**known, **token}}, capture_output=True, text=True, timeout=120)
        print("stranger", done.returncode != 0, done.stdout)
"""


def test_a_token_is_set_for_the_session_and_gone_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with own_token():
        first = os.environ["RAY_AUTH_TOKEN"]
        assert os.environ["RAY_AUTH_MODE"] == "token" and len(first) == 64
    assert "RAY_AUTH_MODE" not in os.environ and "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with own_token():
        assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.slow
def test_code_of_a_stranger_is_not_run() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SESSION], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["own", "task", "1", "stranger", "True", "stranger", "True"]
