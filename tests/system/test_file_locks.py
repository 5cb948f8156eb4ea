"""Locks between processes, on this system and as Windows would have them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ffalm.system import file_locks
from ffalm.system.file_locks import try_lock, wait_for_lock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as mine, open(tmp_path / "lock", "w") as yours:
        assert try_lock(mine)
        assert not try_lock(yours)
        assert not wait_for_lock(yours, 0.0)
        mine.close()
        assert wait_for_lock(yours, 5.0)


def on_windows(monkeypatch: pytest.MonkeyPatch, locking: Any) -> ModuleType:
    """The module as it is imported on Windows."""
    spec = importlib.util.spec_from_file_location("locks_on_windows", file_locks.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "win32")
        patched.setitem(sys.modules, "fcntl", None)
        patched.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
        spec.loader.exec_module(module)
    return module


def test_windows_locks_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[int] = set()

    def locking(handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        if held:
            raise PermissionError
        held.add(handle)

    locks = on_windows(monkeypatch, locking)
    with open(tmp_path / "lock", "w") as mine, open(tmp_path / "lock", "w") as yours:
        assert locks.try_lock(mine)
        assert not locks.wait_for_lock(yours, 0.0)
        held.clear()
        assert locks.wait_for_lock(yours)
