"""Output that cannot be written to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = [sys.executable, "-m", "ffalm", "models"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_in_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(MODELS, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ffalm: The disk cannot be read or written: no space left on device.\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_reader_that_has_enough_is_no_bug() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as nobody:
        done = subprocess.run(MODELS, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
