"""Memory that is freed is used again, where glibc would otherwise give it back at once."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from ffalm.engines.stacked.heap import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
torch.ones(2**19)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in range(20, 24):
    for _ in range(4):
        torch.ones(2 ** (size - 2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_blocks_that_come_and_go_cost_fewer_pages_once_they_are_kept() -> None:
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "given back")
    )
    assert kept < 0.8 * given_back
