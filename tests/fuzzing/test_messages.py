"""Whatever a site or a coordinator is sent, it answers or refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzzing import messages


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Fuzzers silence the log of federations; other tests of the same process read it."""
    log = logging.getLogger("ffalm.federate")
    before = log.level
    yield
    log.setLevel(before)


@pytest.mark.parametrize(("cases", "seed"), [(10, 17), pytest.param(20_000, 18, marks=pytest.mark.slow)])
def test_changed_messages_are_read_or_refused(tmp_path: Path, cases: int, seed: int) -> None:
    made = messages.prepare(tmp_path, secure=cases > 100)
    for number in range(cases):
        outcome, case = messages.run(number, seed, made)
        assert outcome.fine, f"case {number} of seed {seed}, {case}: {outcome}"
