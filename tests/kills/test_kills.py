"""A study that was disturbed and resumed comes to the same bytes as one that was not."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_thousand_disturbed_studies_come_to_the_same_bytes() -> None:
    command = [sys.executable, "-m", "tests.kills", "--kills", "1000"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
