"""The format of a federation or site folder: which versions of ffalm can read it, and how older ones are migrated.

Format 1 is that of early versions, without a number: their database may hold message contents, and other users may be
able to read their files. Format 2 has neither problem.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ffalm
from ffalm.errors import UserError, require
from ffalm.federate.deploy.superlink_state import erase_contents
from ffalm.system.files import read_json, write_atomic

CURRENT = 2
_FILE = "format.json"
_SECRETS = ("ca.key", "server.key", "node.key", "state.db", "registered.json")


def read_format(folder: Path) -> int:
    """The format of a folder."""
    file = _file(folder)
    if not file.exists():
        return 1
    try:
        return int(read_json(file)["format"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"The file {file} cannot be read: restore it from a backup.") from None


def check_format(folder: Path) -> int:
    """The format of a folder; one that a newer ffalm has written is refused."""
    found = read_format(folder)
    require(
        found <= CURRENT,
        f"The folder {folder} has format {found}, and ffalm {ffalm.__version__} reads formats up to {CURRENT}: "
        "install the newer ffalm that wrote it.",
    )
    return found


def write_format(folder: Path) -> None:
    """Mark a folder as of the current format."""
    write_atomic(_file(folder), json.dumps({"format": CURRENT, "ffalm": ffalm.__version__}) + "\n")


def upgrade(folder: Path) -> list[str]:
    """Migrate a folder to the current format; the steps that were taken."""
    done: list[str] = []
    for step in range(check_format(folder), CURRENT):
        done += _MIGRATIONS[step](folder)
        done.append(f"format {step} to {step + 1}")
    if done:
        write_format(folder)
    return done


def _to_2(folder: Path) -> list[str]:
    """Erase message contents, and close the files to other users."""
    own = _file(folder).parent
    erase_contents(own / "state.db")
    done = ["message contents erased from the database"] if (own / "state.db").exists() else []
    for path in [own, folder / "run", *(own / name for name in _SECRETS)]:
        if path.exists() and path.stat().st_mode & 0o077:
            with suppress(PermissionError):  # another user's file: the doctor reports it
                path.chmod(0o700 if path.is_dir() else 0o600)
                done.append(f"{path.name} closed to others")
    return done


_MIGRATIONS: dict[int, Callable[[Path], list[str]]] = {1: _to_2}


def _file(folder: Path) -> Path:
    """The file with the number: with the coordinator's files, or in the site's folder."""
    return (folder if (folder / "site.toml").is_file() else folder / "coordinator") / _FILE
