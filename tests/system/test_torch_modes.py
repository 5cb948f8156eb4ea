"""The turn that threads take where they share what torch keeps for a whole process."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from ffalm.system.torch_modes import TURN


def take_turn() -> None:
    with TURN:
        pass


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes are not forked here")
def test_a_process_that_is_forked_while_a_thread_trains_does_not_wait_for_it() -> None:
    taken, enough = threading.Event(), threading.Event()

    def train() -> None:
        with TURN:
            taken.set()
            enough.wait()

    thread = threading.Thread(target=train)
    thread.start()
    taken.wait()
    child = multiprocessing.get_context("fork").Process(target=take_turn)
    child.start()
    child.join(5)
    ended = child.exitcode
    child.kill()
    enough.set()
    thread.join()
    assert ended == 0
