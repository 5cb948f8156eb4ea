"""Free memory of a device, recognising that it has run out, and refusing work before it does."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from ffalm.errors import require

_WORDS = r"DefaultCPUAllocator|bad_alloc|out of memory|STATUS_ALLOC_FAILED|can't start new thread"
_EXHAUSTED = re.compile(_WORDS, re.IGNORECASE)
_ROOT = Path("/")


def free(device: torch.device, processes: int = 1, root: Path = _ROOT) -> int | None:
    """Bytes that this process may still take on a device that it shares with others; None if unknown.

    `processes` is how many work side by side there: each plans for its share.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] // processes + unused
    shared = [*_available(root), *_groups_left(root)]
    own = [*(left // processes for left in shared), *_limits_left(root)]
    return max(0, min(own)) if own else None


def require_room(needed: float, what: str, remedy: str) -> None:
    """Refuse work that needs more main memory than is free, before the kernel kills this process."""
    left = free(torch.device("cpu"))
    require(
        left is None or needed <= left,
        f"{what} would need about {format_bytes(needed)} of memory, and {format_bytes(left or 0)} are free: {remedy}.",
    )


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory has run out; torch has a type for that on a GPU, and none on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(_EXHAUSTED.search(str(error)))


def give_back(device: torch.device) -> None:
    """Release unused memory, such as that of a failed attempt, which would not count as free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        with suppress(AttributeError):  # only some C libraries keep what is freed, and know how to give it back
            ctypes.CDLL(None).malloc_trim(0)


def format_bytes(size: float) -> str:
    """Bytes for people to read."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _available(root: Path) -> Iterator[int]:
    """Memory that Linux can give out without swapping."""
    found = _value(root / "proc/meminfo", "MemAvailable:")
    if found is not None:
        yield found * 1024


def _groups_left(root: Path) -> Iterator[int]:
    """Memory left in each control group of this process, by which containers and batch queues limit memory.

    A group counts cached files as used, although inactive ones can be dropped.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if not kinds:
            bases = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            limit, use, cached = "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            bases = [root / "sys/fs/cgroup/memory"]
            limit, use, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in [base / group for base in bases for group in (inside, *inside.parents)]:
            most, used = _value(folder / limit), _value(folder / use)
            if most is not None and used is not None:
                yield most - used + (_value(folder / "memory.stat", cached) or 0)


def _limits_left(root: Path) -> Iterator[int]:
    """Memory left under this process's own limits, such as those of `ulimit -v`."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    for kind, held in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most, used = resource.getrlimit(kind)[0], _value(root / "proc/self/status", held)
        if most != resource.RLIM_INFINITY and used is not None:
            yield most - used * 1024


def _value(path: Path, name: str | None = None) -> int | None:
    """The number in a file, or on its line of this name; None if it has no number, such as "max"."""
    for line in _lines(path):
        words = line.split()
        if name is None or words[:1] == [name]:
            word = words[0 if name is None else 1]
            return int(word) if word.isdigit() else None
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
