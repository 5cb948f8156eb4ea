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


def faults(how: str) -> int:
    """The fewest of some runs: where a process' memory happens to lie adds to them by chance."""
    command = [sys.executable, "-c", FAULTS, how]
    return min(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(8))


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_blocks_that_come_and_go_cost_fewer_pages_once_they_are_kept() -> None:
    assert faults("kept") < 0.8 * faults("given back")
