"""Users' own Python files that register algorithms."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ffalm.errors import UserError, require
from ffalm.system.files import reason

_PREFIX = "ffalm_plugin_"
_ON_CLIENTS = ("objective", "objectives", "prepare", "slopes", "drift", "finish")  # hooks that read what was sent


def import_plugin(path: Path) -> None:
    """Import a plugin file once per process, under a name that every process derives from its path.

    Objects of its classes can then be pickled: a worker that imports the same file finds them by that name.
    """
    try:
        found, place = path.is_file(), path.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"The plugin file {path} cannot be read: {reason(error)}.") from None
    require(found, f"There is no plugin file {path}.")
    require(place.suffix == ".py", f"The plugin file {path} is not a Python file: its name must end in .py.")
    name = f"{_PREFIX}{place.stem}_{hashlib.sha256(str(place).encode(errors='surrogateescape')).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"The plugin file {path} cannot be used: {what}{str(error).rstrip('.')}.") from error


def imported() -> tuple[Path, ...]:
    """The plugin files that this process has imported: another must import them before it reads their objects."""
    return tuple(Path(str(module.__file__)) for name, module in list(sys.modules.items()) if name.startswith(_PREFIX))


def blamed(error: BaseException) -> UserError | None:
    """A message about an error raised in a plugin's code, with its line there; None if no plugin raised it."""
    for frame in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame[0].f_globals.get("__name__", "")).startswith(_PREFIX):
            where = f"line {frame[1]} of the plugin {frame[0].f_code.co_filename}"
            return UserError(
                f"{type(error).__name__} in {where}: {str(error).rstrip('.')}.{_of_state(error, frame[0])}"
            )
    return None


def _of_state(error: BaseException, frame: FrameType) -> str:
    """What an entry that a hook on a client did not find in its state may lack: a name in `broadcasts`."""
    names = getattr(frame.f_locals.get("self"), "broadcasts", None)
    if names is None or not isinstance(error, KeyError) or frame.f_code.co_name not in _ON_CLIENTS:
        return ""
    listed = ", ".join(map(str, names)) or "none"
    return f" Clients receive those entries of state and vectors that `broadcasts` names: {listed}."


@contextmanager
def attributed() -> Iterator[None]:
    """In a worker: raise an error of a plugin's code as `blamed` says, since it loses its frames on its way back."""
    try:
        yield
    except Exception as error:
        fault = blamed(error)
        if fault is None or isinstance(error, UserError):
            raise
        raise fault from error
