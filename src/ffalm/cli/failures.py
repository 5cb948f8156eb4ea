"""Messages for errors that the user, a plugin or the machine caused, as opposed to bugs of ours."""

from __future__ import annotations

import errno
import sys

from ffalm.errors import UserError, printable
from ffalm.system.files import reason


def explained(error: BaseException) -> str | None:
    """One sentence on an error that the user, a plugin or the machine caused; None for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    looped = error.__context__ if isinstance(error, RuntimeError) else None  # pathlib raises it for circular links
    if isinstance(looped, OSError) and looped.errno == errno.ELOOP:
        return _of_the_disk(looped)
    if isinstance(error, OSError):
        return _of_the_disk(error)
    from ffalm.plugins import blamed

    fault = blamed(error)
    if fault is not None:
        return str(fault)
    if isinstance(error, MemoryError) or _not_loaded(error) or ("torch" in sys.modules and _exhausted(error)):
        return "There is not enough memory for this: take fewer rows, workers or clients, or a smaller model."
    if isinstance(error, UnicodeEncodeError):
        return f"The output takes no {error.encoding} text: set PYTHONIOENCODING=utf-8."
    return None


def _of_the_disk(error: OSError) -> str:
    """For a full or protected disk, a name that is too long, or a folder that was moved during a run."""
    place = "The disk" if error.filename is None else printable(str(error.filename))
    return f"{place} cannot be read or written: {reason(error)}."


def _not_loaded(error: BaseException) -> bool:
    """Whether a library did not fit into memory, as under `ulimit -v`; only the loader's message shows it."""
    words = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory")
    return isinstance(error, ImportError) and any(word in str(error) for word in words)


def _exhausted(error: BaseException) -> bool:
    from ffalm.system.memory import out_of_memory

    return isinstance(error, Exception) and out_of_memory(error)
