"""Arrays in temporary files, for where memory is short: the operating system keeps those parts in memory that are used.

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
from ffalm.system.memory import free, shown

_TOGETHER = 8  # columns
_SHARE = 0.4  # of the free memory that an array may take; larger ones lie in files

_mapped: WeakSet[mmap.mmap] = WeakSet()


def new_array(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """An array without values: in memory, or in a temporary file if it would take much of what is free."""
    size, left = math.prod(shape) * np.dtype(dtype).itemsize, free(torch.device("cpu"))
    if size == 0 or left is None or size <= left * _SHARE:
        return np.empty(shape, dtype)
    file = temporary_file(size)
    try:
        file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError) as error:
        raise UserError(f"A table needs {shown(size)} of memory or address space: {reason(error)}.") from None
    finally:
        file.close()
    _mapped.add(mapped)
    return np.frombuffer(mapped, dtype).reshape(shape)


class ColumnsInRows:
    """Parts of a table that is filled column by column and read row by row; a few columns are moved at once."""

    def __init__(self, parts: Sequence[NDArray[np.int64]], rows: int, columns: int, dtype: DTypeLike) -> None:
        self._parts, self._columns = parts, columns
        self._made = [new_array((len(part), columns), dtype) for part in parts]
        self._waiting = np.empty((rows, min(columns, _TOGETHER)), dtype)
        self._added = 0

    def add(self, values: NDArray[Any]) -> None:
        """The next column, for all rows of the table."""
        place = self._added % _TOGETHER
        self._waiting[:, place] = values
        self._added += 1
        if place + 1 == self._waiting.shape[1] or self._added == self._columns:
            for part, made in zip(self._parts, self._made, strict=True):
                made[:, self._added - place - 1 : self._added] = self._waiting[part, : place + 1]

    def finished(self) -> list[NDArray[Any]]:
        """Each part's rows."""
        return self._made


def temporary_file(size: int) -> BinaryIO:
    """A file without a name for so many bytes; refused where the disk has too little room for them."""
    folder = tempfile.gettempdir()
    room = shutil.disk_usage(folder).free
    require(
        size < room,
        f"A table that is larger than memory needs {shown(size)} in {folder}, and {shown(room)} are free: set TMPDIR "
        "to a folder with more room.",
        "Its data file is larger than memory, and its disk has too little room for temporary files.",
    )
    return cast(BinaryIO, tempfile.TemporaryFile())


def release_pages() -> None:
    """Take what lies in temporary files out of this process' memory until it is used again."""
    for mapped in list(_mapped):
        with suppress(AttributeError, ValueError, OSError):  # not on every system, or closed
            mapped.madvise(mmap.MADV_DONTNEED)
