"""Python files of a user's own that register algorithms."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from ffalm.errors import UserError, require


def import_plugin(path: Path) -> None:
    """Import a plugin file once per process, under a name that every process derives from its path.

    Objects of its classes can then be pickled: a worker that imports the same file finds them by that name.
    """
    require(path.is_file(), f"There is no plugin file {path}.")
    place = path.resolve()
    name = f"ffalm_plugin_{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, place)
    require(spec is not None, f"The plugin file {path} is not a Python file: its name must end in .py.")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"The plugin file {path} cannot be used: {type(error).__name__}: {error}.") from error
