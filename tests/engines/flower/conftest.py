"""What the tests of this room need: Flower, and a process that Flower believes to be one of its own."""

from __future__ import annotations

import pytest

from ffalm.engines.flower.engine import keep_quiet


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be made outside a run; skip where Flower is not installed."""
    keep_quiet()
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'ffalm[flower]'")
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
