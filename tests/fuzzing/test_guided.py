"""Inputs from which the coverage-guided fuzzer starts, among them all that it has found."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing.guided import TARGETS, beginnings, refused_or_read


@pytest.mark.parametrize("name", ["table", "config", "message"])
def test_what_was_found_is_read_or_refused(tmp_path: Path, name: str) -> None:
    target = TARGETS[name](tmp_path)
    for data in beginnings(name):
        refused_or_read(target, data)
