"""A federation folder in one file, taken while the coordinator may be running, and back.

A backup is a tar file of the folder's regular files with `backup.json` as its last member: the format, the version and
the SHA-256 of every file. The database is copied by SQLite's backup interface. A training writes its files one
after the other, so a copy counts only if nothing changed from its first file to its last; otherwise it is taken again.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import ffalm
from ffalm.errors import UserError, require
from ffalm.federate.deploy.folder import FederationFolder, new_folder
from ffalm.federate.keys import SECRETS
from ffalm.system.files import read_json, reason, unfinished

MANIFEST = "backup.json"
FORMAT = 1
_DATABASE = "coordinator/state.db"
_HOMES = ("coordinator/home", "sites/*/home")  # of Flower's processes, which write them anew
_LEFT_OUT_ENDINGS = (".pid", ".lock", ".db-wal", ".db-shm")
_ATTEMPTS, _SECONDS_BETWEEN = 20, 0.3
_CHUNK = 2**20

Version = tuple[int, int, int]


def back_up(folder: FederationFolder, file: Path) -> dict[str, Any]:
    """Write a backup that only its owner may read; its manifest."""
    require(not file.exists(), f"{file} exists already, and a backup is never written over: choose another name.")
    require(
        folder.path not in file.resolve().parents,
        f"The backup {file} would lie in the folder that is backed up: choose a place outside {folder.path}.",
    )
    require(file.resolve().parent.is_dir(), f"There is no folder {file.resolve().parent} for the backup.")
    beside = unfinished(file)
    try:
        for _ in range(_ATTEMPTS):
            manifest = _attempt(folder, beside)
            if manifest is not None:
                beside.replace(file)
                return manifest
            time.sleep(_SECONDS_BETWEEN)
    except OSError as error:
        raise UserError(f"The backup {file} cannot be written: {reason(error)}.") from None
    finally:
        beside.unlink(missing_ok=True)
    raise UserError(f"The training changes files of {folder.path} all the time: stop it, or try again between rounds.")


def restore(file: Path, path: Path) -> dict[str, Any]:
    """Write the folder of a backup, whole or not at all, once every checksum is right; the backup's manifest."""
    require(file.is_file(), f"There is no backup {file}.")
    path, beside = new_folder(path)
    try:
        beside.mkdir(mode=0o700)
        found = _unpacked(file, beside)
        manifest = _checked(file, found, beside)
        require((beside / "federation.toml").is_file(), f"The backup {file} holds no federation.toml.")
        beside.replace(path)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"The file {file} is no backup of a federation ({error}).") from None
    except OSError as error:
        raise UserError(f"The backup {file} cannot be restored to {path}: {reason(error)}.") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    FederationFolder(path).write_app()
    return manifest


def _attempt(folder: FederationFolder, file: Path) -> dict[str, Any] | None:
    """One pass over the folder; None if it changed meanwhile."""
    before = _versions(folder)
    sums: dict[str, str] = {}
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as archive:
            for name in before:
                sums[name] = _add(archive, folder.path / name, name)
            manifest = {
                "format": FORMAT,
                "ffalm": ffalm.__version__,
                "federation": folder.name,
                "time": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC",
                "files": sums,
            }
            content = json.dumps(manifest, indent=2).encode()
            archive.addfile(_member(MANIFEST, len(content)), io.BytesIO(content))
    except FileNotFoundError:
        return None
    return manifest if _versions(folder) == before else None


def _versions(folder: FederationFolder) -> dict[str, Version]:
    """The version of every file in a backup; that of the database and logs, which may change, is constant."""
    found: dict[str, Version] = {}
    for path in sorted(_files(folder.path)):
        name = path.relative_to(folder.path).as_posix()
        try:
            seen = path.stat()
        except FileNotFoundError:
            continue
        live = name == _DATABASE or path.name.endswith(".log")
        found[name] = (0, 0, 0) if live else (seen.st_mtime_ns, seen.st_size, seen.st_ino)
    return found


def _files(path: Path) -> Iterator[Path]:
    """Regular files, without half-written ones and those that processes write again; links are not followed."""
    homes = {home for pattern in _HOMES for home in path.glob(pattern)}
    for base, folders, names in os.walk(path):
        folders[:] = [
            name
            for name in folders
            if name != SECRETS  # of a secure round, which end with it
            and not _half_written(name)
            and Path(base, name) not in homes
        ]
        for name in names:
            one = Path(base, name)
            if (
                not _half_written(name)
                and not name.endswith(_LEFT_OUT_ENDINGS)
                and one.is_file()
                and not one.is_symlink()
            ):
                yield one


def _half_written(name: str) -> bool:
    """Whether a file is still being written: `files.write_atomic` renames it at the end."""
    return name.startswith(".") and name.rpartition(".")[2].isdecimal()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> str:
    """Add a file and return its checksum."""
    if name == _DATABASE:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "state.db")
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            return _stream(archive, copy, name)
    if path.suffix == ".log":  # it may grow or be rotated meanwhile
        content = path.read_bytes()
        archive.addfile(_member(name, len(content)), io.BytesIO(content))
        return hashlib.sha256(content).hexdigest()
    return _stream(archive, path, name)


def _stream(archive: tarfile.TarFile, path: Path, name: str) -> str:
    with open(path, "rb") as file:
        archive.addfile(_member(name, os.fstat(file.fileno()).st_size), file)
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    return member


def _unpacked(file: Path, into: Path) -> dict[str, str]:
    """Write the members of a backup below a folder; their checksums. Paths that lead elsewhere are refused."""
    sums: dict[str, str] = {}
    with tarfile.open(file, mode="r:") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            inside = member.name == str(name) and not name.is_absolute() and ".." not in name.parts
            require(
                member.isreg() and inside and member.name.isprintable() and member.name not in sums,
                f"The backup {file} holds {member.name!r}, which is no file of a federation: nothing was restored.",
            )
            content = archive.extractfile(member)
            assert content is not None
            target = into.joinpath(*name.parts)
            for parent in reversed(target.relative_to(into).parents):
                (into / parent).mkdir(exist_ok=True, mode=0o700)
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                digest = hashlib.sha256()
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
            sums[member.name] = digest.hexdigest()
    return sums


def _checked(file: Path, sums: dict[str, str], folder: Path) -> dict[str, Any]:
    """The manifest, removed from the folder, once all files are checked against it."""
    require(MANIFEST in sums, f"The file {file} holds no {MANIFEST}: it is no backup of a federation, or is cut short.")
    try:
        manifest: dict[str, Any] = read_json(folder / MANIFEST)
        expected, version = dict(manifest["files"]), int(manifest["format"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"The {MANIFEST} of {file} cannot be read: the backup is damaged.") from None
    require(
        version <= FORMAT,
        f"The backup {file} was written by ffalm {manifest.get('ffalm')}, which is newer than this ffalm "
        f"{ffalm.__version__}: install that version to restore it.",
    )
    (folder / MANIFEST).unlink()
    found = {name: digest for name, digest in sums.items() if name != MANIFEST}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    require(not wrong, f"The backup {file} is damaged: {', '.join(wrong[:3])} do not fit their checksums.")
    return manifest
