"""Arrays in temporary files for when memory is short: the operating system keeps only the parts in use in memory.

The files have no name (on Windows they are removed at the end), so nothing is left behind, however the process ends.
"""

from __future__ import annotations

import math
import mmap
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from ffalm.errors import UserError, require
from ffalm.system.files import reason
from ffalm.system.memory import format_bytes, free

_WAITING = 2**27  # bytes of columns that are put into place together
_ROWS = 2**18  # of which so many rows at a time
_SHARE = 0.4  # of the free memory that an array may take; larger ones lie in files

_mapped: WeakSet[mmap.mmap] = WeakSet()


def too_large(size: int) -> bool:
    """Whether arrays of this many bytes would take much of the free memory."""
    left = free(torch.device("cpu"))
    return left is not None and size > left * _SHARE


def new_array(shape: Sequence[int], dtype: DTypeLike, spilled: bool | None = None) -> NDArray[Any]:
    """An array without values, in memory or in a temporary file; by default its size decides."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0 or not (too_large(size) if spilled is None else spilled):
        return np.empty(shape, dtype)
    file = temporary_file(size)
    try:
        file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError) as error:
        raise UserError(f"A table needs {format_bytes(size)} of memory or address space: {reason(error)}.") from None
    finally:
        file.close()
    _mapped.add(mapped)
    return np.frombuffer(mapped, dtype).reshape(shape)


class ColumnsInRows:
    """Parts of a table that is filled column by column and read row by row; a few columns are moved at once."""

    def __init__(
        self, parts: Sequence[NDArray[np.int64]], rows: int, columns: int, dtype: DTypeLike, spilled: bool
    ) -> None:
        self._parts, self._columns, self._added = parts, columns, 0
        self._made = [new_array((len(part), columns), dtype, spilled) for part in parts]
        self._together = min(columns, max(1, min(8, _WAITING // max(1, rows * np.dtype(dtype).itemsize))))
        self._waiting = np.empty((rows, self._together), dtype)

    def add(self, values: NDArray[Any]) -> None:
        """The next column, for all rows of the table."""
        count = self._added % self._together + 1
        self._waiting[:, count - 1] = values
        self._added += 1
        if count < self._together and self._added < self._columns:
            return
        for part, made in zip(self._parts, self._made, strict=True):
            for first in range(0, len(part), _ROWS):
                rows = part[first : first + _ROWS]
                made[first : first + len(rows), self._added - count : self._added] = self._waiting[rows, :count]

    def finished(self) -> list[NDArray[Any]]:
        """Each part's rows."""
        return self._made


def temporary_file(size: int) -> BinaryIO:
    """A file without a name for this many bytes; refused if the disk has too little room."""
    folder = tempfile.gettempdir()
    room = shutil.disk_usage(folder).free
    require(
        size < room,
        f"A table that is larger than memory needs {format_bytes(size)} in {folder}, and {format_bytes(room)} are "
        "free: set TMPDIR to a folder with more room.",
        "Its data file is larger than memory, and its disk has too little room for temporary files.",
    )
    return cast(BinaryIO, tempfile.TemporaryFile())


def release_pages() -> None:
    """Drop pages of temporary files from this process's memory until they are used again."""
    for mapped in list(_mapped):
        with suppress(AttributeError, ValueError, OSError):  # not on every system, or closed
            mapped.madvise(mmap.MADV_DONTNEED)
