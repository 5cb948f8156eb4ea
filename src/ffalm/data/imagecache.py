"""A disk cache of decoded images, so that images are decompressed once and then memory-mapped.

A cache is two files, `<place>-<fingerprint>.npy` (the pixels) and `.json` (their checksum, each file's content digest,
and which files could not be decoded). The place is a hash of file names and recipe, the fingerprint also of the files'
sizes and times: a changed image gives another cache, and the one it replaces is removed. Both files are written under a
temporary name and renamed, the JSON last, so a cache with a JSON is complete even if a process was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from rich.console import Console
from rich.progress import track

from ffalm.data.decode import DECODER_VERSION, Chunk, Pixels, Recipe, decode_all
from ffalm.errors import UserError
from ffalm.system.file_locks import try_lock, wait_for_lock
from ffalm.system.files import cache_folder, read_json

LAYOUT_VERSION = 2  # of the two files; raise it when what they hold changes
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoded:
    """The requested images, in order; one that cannot be decoded is black and has a reason in `bad`."""

    pixels: Pixels  # (rows, 3, size, size), possibly mapped from disk: copy the rows you need
    contents: list[str]  # a digest of each file's bytes
    bad: dict[int, str]
    notes: tuple[str, ...] = ()


def load_images(root: Path, names: Sequence[str], recipe: Recipe) -> Decoded:
    """The pixels of these files under a folder, from the cache, or decoded and then cached.

    If the cache folder cannot be written (read-only, disk full), the images are decoded into memory, with a note.
    """
    place, fingerprint = _identity(root, names, recipe)
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # others may not be allowed to see the images
        entry = _Entry(folder, place, fingerprint, (len(names), 3, recipe.size, recipe.size))
        found = entry.read() or _make(entry, root, names, recipe)
        if found is not None:
            return found
        trouble = f"what was written to {folder} could not be read back"
    except OSError as error:
        trouble = f"{error.filename or cache_folder()}: {error.strerror or error}"
    note = f"Decoded images could not be kept for next time ({trouble}); FFALM_CACHE names another folder."
    return _in_memory(_chunks(root, names, recipe), len(names), recipe, note)


def _make(entry: _Entry, root: Path, names: Sequence[str], recipe: Recipe) -> Decoded | None:
    """Decode into the cache, unless another process did so while this one waited for the lock."""
    with _lock(entry.folder / f"{entry.place}.lock") as alone:
        found = entry.read()
        if found is not None:
            return found
        if alone:
            entry.clear_place()
        entry.write(_chunks(root, names, recipe))
        return entry.read()


class _Entry:
    """One cache on disk."""

    def __init__(self, folder: Path, place: str, fingerprint: str, shape: tuple[int, ...]) -> None:
        self.folder, self.place, self.fingerprint, self.shape = folder, place, fingerprint, shape
        self.pixels = folder / f"{place}-{fingerprint}.npy"
        self.about = folder / f"{place}-{fingerprint}.json"

    def read(self) -> Decoded | None:
        """The cache, or None if it is missing or incomplete."""
        try:
            about = read_json(self.about)
            pixels = np.load(self.pixels, mmap_mode="r", allow_pickle=False)
            contents = [str(content) for content in about["contents"]]
            bad = {int(row): str(reason) for row, reason in about["bad"].items()}
            whole = about["fingerprint"] == self.fingerprint and len(contents) == self.shape[0]
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.info("The cache %s is damaged and will be replaced: %s", self.pixels, error)
            return None
        if not whole or pixels.shape != self.shape or pixels.dtype != np.uint8:
            return None
        if zlib.crc32(pixels.data) != about.get("crc32"):
            log.info("The cache %s is damaged and will be replaced: its checksum differs", self.pixels)
            return None
        return Decoded(pixels, contents, bad)

    def write(self, chunks: Iterator[Chunk]) -> None:
        """Store chunks as they are decoded, then publish them under the names that `read` looks for."""
        mark = f".{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
        pixels, about = (path.with_name(path.name + mark) for path in (self.pixels, self.about))
        contents: list[str] = []
        bad: dict[int, str] = {}
        checksum = 0
        try:
            with _synced(pixels) as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in chunks:
                    bad.update({len(contents) + row: reason for row, reason in chunk.bad.items()})
                    contents += chunk.contents
                    file.write(chunk.pixels.data)
                    checksum = zlib.crc32(chunk.pixels.data, checksum)
            about_pixels = {"fingerprint": self.fingerprint, "crc32": checksum, "contents": contents, "bad": bad}
            text = json.dumps(about_pixels)
            with _synced(about) as file:
                file.write(text.encode())
            os.replace(pixels, self.pixels)
            os.replace(about, self.about)
        finally:
            for path in (pixels, about):
                path.unlink(missing_ok=True)

    def clear_place(self) -> None:
        """Remove leftovers of killed processes and outdated caches; only the holder of the lock may call it."""
        for path in self.folder.glob(f"{self.place}-*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _identity(root: Path, names: Sequence[str], recipe: Recipe) -> tuple[str, str]:
    """(place, fingerprint): a hash of names and recipe, and one that includes the state of the files."""
    where: list[Any] = [str(root.resolve()), recipe.size, recipe.crop, *names]
    state: list[Any] = [DECODER_VERSION, LAYOUT_VERSION, PIL.__version__]
    folder = os.fspath(root)
    for name in names:
        try:
            status = os.stat(os.path.join(folder, name))  # building a Path would take longer than the call itself
        except (OSError, ValueError) as error:
            raise UserError(f"Cannot find the image {root / name}: {error}.") from error
        state += [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return _digest(where), _digest(where + state)


def _digest(values: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=12).hexdigest()


def _chunks(root: Path, names: Sequence[str], recipe: Recipe) -> Iterator[Chunk]:
    """Decode, with a progress bar on a terminal."""
    log.info("Decoding %d images of %s.", len(names), root)
    chunks = decode_all([root / name for name in names], recipe)
    total = -(-len(names) // recipe.chunk)
    watched = total > 20 and sys.stderr.isatty()
    yield from track(
        chunks, "Decoding images", total, console=Console(stderr=True), transient=True, disable=not watched
    )


def _in_memory(chunks: Iterator[Chunk], rows: int, recipe: Recipe, note: str) -> Decoded:
    pixels = np.empty((rows, 3, recipe.size, recipe.size), dtype=np.uint8)
    contents: list[str] = []
    bad: dict[int, str] = {}
    for chunk in chunks:
        start = len(contents)
        pixels[start : start + len(chunk.pixels)] = chunk.pixels
        bad.update({start + row: reason for row, reason in chunk.bad.items()})
        contents += chunk.contents
    return Decoded(pixels, contents, bad, (note,))


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """A new file, synced to disk before it is renamed."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Wait until no other process holds this lock; yields False if the file system does not support locks.

    The operating system releases the lock when its holder ends, even if it is killed.
    """
    with open(path, "ab") as file:
        locked = True
        try:
            if not try_lock(file):
                log.info("Waiting for another process that decodes the same images.")
                wait_for_lock(file)
        except OSError:
            locked = False
        yield locked
