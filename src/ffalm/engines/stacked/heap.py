"""What the C library does with memory that is freed."""

from __future__ import annotations

import contextlib

import torch

_LARGE = 2**25 - 2**16  # bytes: just under the most that glibc learns from


def keep_freed() -> None:
    """Let freed blocks be reused instead of going back to the system.

    glibc hands a block back at once if it is larger than any that was freed before, and the system then fills the
    next one with zeros, page by page: a tenth of a round. It learns from a large block that comes and goes once; not a
    byte of it is touched. Where memory is too short for that, or another library is in use, nothing is lost.
    """
    with contextlib.suppress(RuntimeError):
        torch.empty(_LARGE, dtype=torch.uint8)
