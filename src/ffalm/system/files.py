"""Reads a user's files within limits; writes ours so that a reader finds either the old or the new one, complete."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffalm.errors import UserError, printable, require, short_repr

_UNFINISHED = ".ffalm-"
_LARGEST_TEXT = 16 * 2**20
_LIMITED_INFORMATION = 0x1000  # the right to ask Windows whether a process is there


def read_text(path: Path, what: str) -> str:
    """The text of a file that a user named; devices, pipes and very large files are refused."""
    try:
        if not path.exists():
            raise UserError(f"There is no {what} {path}.")
        if not path.is_file():
            raise UserError(f"The {what} {path} is not a file.")
        if path.stat().st_size > _LARGEST_TEXT:
            raise UserError(f"The {what} {path} is larger than {_LARGEST_TEXT // 2**20} MB: name another.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"The {what} {path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The {what} {printable(str(path))} cannot be read: {reason(error)}.") from None


def path_of(given: Any) -> Path:
    """The path that a user gave; a `UserError` if it is anything else."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise UserError(f"The path must be a text or a Path; got {short_repr(given)}.")
    try:
        Path(text).exists()
    except OSError as error:  # such as a name that is too long
        raise UserError(f"The path {short_repr(text)} cannot be used: {reason(error)}.") from None
    return Path(text)


def folder_of(given: Any) -> Path:
    """The folder that a user named for output, which need not exist."""
    place = path_of(given)
    require(place.is_dir() or not place.exists(), f"The output {place} is a file: name a folder.")
    return place


def file_of(given: Any) -> Path:
    """The file that a user named for output, which need not exist."""
    place = path_of(given)
    require(not place.is_dir(), f"The output {place} is a folder: name a file.")
    return place


def require_output(out: Path | None, given: Path, kind: str = "a file") -> None:
    """Refuse an output that is a folder, or the very file that is read, which would be lost."""
    if out is not None and out.exists():
        require(not out.is_dir(), f"The output {out} is a folder: name {kind}.")
        same = given.exists() and out.samefile(given)
        require(not same, f"The output {out} is the file that is read, which would be lost: name another.")


def require_replaceable(out: Path, mark: str, what: str) -> None:
    """Refuse to overwrite a user's file: an existing file must be empty or contain the mark of what we write."""
    if not out.is_file():
        return
    with open(out, "rb") as file:
        content = file.read(_LARGEST_TEXT)
    ours = not content or mark.encode() in content
    require(ours, f"The output {out} exists and is not {what}: name another file, or remove it first.")


def cache_folder() -> Path:
    """The cache folder: $FFALM_CACHE, or `ffalm` in the user's cache folder."""
    chosen = os.environ.get("FFALM_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "ffalm"


def reason(error: BaseException) -> str:
    """Why a file operation failed, in words that fit into a sentence."""
    words = getattr(error, "strerror", None) or str(error)
    return words[:1].lower() + words[1:].rstrip(".")


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write under another name, sync and rename; the folder is made if it is missing.

    A link stays one, and a device or pipe such as /dev/null is written to, since a rename would replace it.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(path, "wb", opener=_open_at_once) as file:
            file.write(content)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    beside = unfinished(place)
    try:
        synced(beside, content)
        beside.replace(place)
    except OSError as error:
        if error.filename == str(beside):
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        with suppress(OSError):  # on a read-only disk this fails too, and would hide the reason
            beside.unlink(missing_ok=True)
    return path


def _open_at_once(path: str, flags: int) -> int:
    """Open a device or pipe for writing; a pipe that nobody reads is refused instead of waited for."""
    try:
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UserError(f"Nobody reads the pipe {path}: start its reader first.") from None
        raise
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(handle, True)
    return handle


def unfinished(path: Path) -> Path:
    """The hidden name under which this process writes a file or folder before it is renamed into place."""
    return path.with_name(f"{_UNFINISHED}{path.name}.{os.getpid()}")


def synced(path: Path, content: bytes, due: bool = True) -> None:
    """Write a file and, if it is due, wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        if due:
            file.flush()
            os.fsync(file.fileno())


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until files are on the disk; files that no longer exist are skipped."""
    for path in paths:
        with suppress(FileNotFoundError), open(path, "rb+") as file:
            os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> None:
    """Remove half-written files of killed processes from a folder, whose lock the caller holds.

    Hidden files of the user's own stay.
    """
    for path in folder.glob(f"{_UNFINISHED}*"):
        owner = path.name.rpartition(".")[2]
        if not owner.isdecimal() or _alive(int(owner)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # where `os.kill(process, 0)` would interrupt it
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(_LIMITED_INFORMATION, False, process)
        return bool(handle and ctypes.windll.kernel32.CloseHandle(handle)) and process != os.getpid()
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != os.getpid() and not _zombie(process)


def _zombie(process: int) -> bool:
    """Whether a process has ended but still exists, as in containers without an init process."""
    if sys.platform == "linux":
        with suppress(OSError):  # it is gone by now
            return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    return False


def write_private(path: Path, content: bytes) -> None:
    """As `write_atomic`, for a secret that only its owner may read; it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = unfinished(path)
    beside.unlink(missing_ok=True)  # of an earlier process of this number that was killed
    try:
        beside.touch(0o600, exist_ok=False)
        synced(beside, content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if sys.platform == "win32":  # which opens no folders
        return
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the rename
    finally:
        os.close(handle)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: numbers that are not finite become null, and paths become texts."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False, default=os.fspath)
    except ValueError:
        return json.dumps(_plain(value), indent=indent, allow_nan=False, default=os.fspath)


def parsed_json(text: str | bytes) -> Any:
    """The values in JSON that others may have written; `ValueError` if it is not JSON or nested too deeply.

    Whole numbers beyond the range of floats raise `ValueError` too, since callers do not expect an overflow.
    """
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > sys.float_info.max_10_exp:
        raise ValueError(f"a whole number has {len(digits)} digits")
    return int(digits)


def read_json(path: Path) -> Any:
    """The values in a JSON file; `OSError` or `ValueError` if it cannot be read, or is a device or a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a file")
    return parsed_json(path.read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
