"""What the user, a plugin or the machine causes is told in one sentence."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from ffalm.cli.failures import explained
from ffalm.cli.running import Stopped, Terminal, interrupting_signals
from ffalm.errors import UserError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("It is so."), "It is so."),
        (FileNotFoundError(2, "No such file or directory", "runs/a"), "runs/a cannot be read or written: no such file"),
        (OSError(36, "File name too long", "a\nb"), r"a\\nb cannot be read"),
        (MemoryError(), "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (UnicodeEncodeError("ascii", "\u00e9", 0, 1, "ordinal"), "PYTHONIOENCODING"),
    ],
)
def test_faults_of_the_machine_are_told(error: BaseException, words: str) -> None:
    import torch  # noqa: F401

    told = explained(error)
    assert told is not None
    assert words.replace("\\\\", "\\") in told
    assert "\n" not in told


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises((RuntimeError, OSError)) as raised:
        (tmp_path / "loop").resolve(strict=True)
    assert "symbolic links" in (explained(raised.value) or "")


def test_a_bug_is_not_explained_away() -> None:
    assert explained(ZeroDivisionError()) is None
    assert explained(ImportError("No module named 'x'")) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_says_how_to_resume(number: signal.Signals) -> None:
    begun: Any = SimpleNamespace(config=SimpleNamespace(training=SimpleNamespace(rounds=1)), left=[])
    before = signal.signal(number, signal.SIG_DFL)  # a test with Ray leaves Ray's own handler behind
    terminal = Terminal(Console(file=io.StringIO()), cast(Any, begun), "ffalm run --out x --resume", quiet=True)
    with pytest.raises(Stopped, match="resume with: ffalm run --out x --resume"), terminal:
        os.kill(os.getpid(), number)
    assert signal.signal(number, before) is signal.SIG_DFL


def test_a_second_signal_does_not_end_the_clearing_up() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    cleared = list[bool]()

    def hung_up_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            cleared.append(True)

    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        hung_up_twice()
    assert cleared and signal.signal(signal.SIGHUP, before) is signal.SIG_DFL


def test_a_signal_that_python_drops_in_a_callback_ends_the_block_all_the_same() -> None:
    """What is raised in the callback of a weak reference is not passed on."""
    before, went_on = signal.signal(signal.SIGTERM, signal.SIG_DFL), list[bool]()

    def signalled(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)  # the signal's handler runs here

    def lose_it() -> None:
        kept = io.StringIO()
        reference = weakref.ref(kept, signalled)
        del kept
        assert reference() is None
        went_on.append(True)
        time.sleep(10)

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        lose_it()
    assert went_on and sys.unraisablehook is hook
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL


def test_a_hang_up_is_left_alone_where_only_following_ends() -> None:
    with interrupting_signals(hang_up=False):
        handled = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    assert callable(handled[0]) and handled[1] is signal.getsignal(signal.SIGHUP)
