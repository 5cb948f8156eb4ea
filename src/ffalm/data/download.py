"""Download of published data sets from their publishers, each file verified by its checksum.

A zip archive without a published checksum is verified by the checksums inside it.
"""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ffalm.errors import UserError, look_up
from ffalm.system import toml

CHUNK = 1 << 16
_SECONDS = 30.0  # to wait for an answer


@dataclass(frozen=True)
class PublishedFile:
    """A published file: URL, size and checksum; without these two it is a zip archive."""

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None

    def is_at(self, path: Path) -> bool:
        """Whether a file is this one, or at least a whole archive."""
        if self.sha256 is None:
            try:
                with zipfile.ZipFile(path) as archive:
                    return archive.testzip() is None
            except (zipfile.BadZipFile, zlib.error, EOFError):
                return False
        with path.open("rb") as present:
            return hashlib.file_digest(present, "sha256").hexdigest() == self.sha256


@dataclass(frozen=True)
class Publication:
    """The files of a data set, and the web page about them."""

    page: str
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True)
class Fetched:
    """The outcome for one file: downloaded, or already present and correct."""

    path: Path
    downloaded: bool
    verified: bool = True  # by a published checksum

    @property
    def message(self) -> str:
        """One sentence for the user."""
        if self.downloaded:
            return f"Downloaded {self.path} and checked it."
        if not self.verified:
            return f"{self.path} is already there and was kept, whatever its year: move it away to download it again."
        return f"{self.path} is already there and is the published file."


PUBLICATIONS = {
    name: Publication(published["page"], tuple(PublishedFile(**file) for file in published["files"]))
    for name, published in toml.beside(__file__).items()
}


def fetch(published: str | Publication, folder: str | Path) -> list[Fetched]:
    """Download a data set, or files of one, into a folder; files that are present and correct are kept.

    A file appears only when it is complete and verified.
    """
    publication = look_up("data set to download", published, PUBLICATIONS) if isinstance(published, str) else published
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {str(folder)!r} cannot be made: {error.strerror}.") from None
    return [_fetch_file(file, folder, publication.page) for file in publication.files]


def _fetch_file(file: PublishedFile, folder: Path, page: str) -> Fetched:
    target = folder / file.name
    if target.exists():
        _check_present(target, file)
        return Fetched(target, downloaded=False, verified=file.sha256 is not None)
    partial = folder / f".{file.name}.{os.getpid()}.part"
    try:
        with _opened(file, folder, page) as response, partial.open("wb") as output:
            _copy(response, output, file, folder, page)
        if not file.is_at(partial):
            raise UserError(
                f"What {file.url} sent is not the published {file.name} ({_differs(file)}), so it was not kept: "
                f"download it from {page} by hand and put it into {str(folder)!r}."
            )
        os.replace(partial, target)
    except OSError as error:
        raise UserError(f"{str(target)!r} cannot be written: {error.strerror or error}.") from None
    finally:
        partial.unlink(missing_ok=True)
    return Fetched(target, downloaded=True)


def _check_present(target: Path, file: PublishedFile) -> None:
    """Refuse to overwrite an existing file with other content."""
    try:
        right = file.is_at(target)
    except OSError as error:
        raise UserError(f"{str(target)!r} cannot be read: {error.strerror}.") from None
    if not right:
        raise UserError(
            f"{str(target)!r} is there but is not the published file ({_differs(file)}): move it away and fetch again."
        )


def _differs(file: PublishedFile) -> str:
    return "its checksum differs" if file.sha256 is not None else "it is not a complete zip archive"


def _opened(file: PublishedFile, folder: Path, page: str) -> http.client.HTTPResponse:
    by_hand = f"download {file.name} from {page} by hand and put it into {str(folder)!r}."
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(file.url, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise UserError(f"{file.url} answered {error.code} ({error.reason}): {by_hand}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{file.url} cannot be reached ({reason}): {by_hand}") from None
    return response


def _copy(response: http.client.HTTPResponse, output: IO[bytes], file: PublishedFile, folder: Path, page: str) -> None:
    """Copy the body; stop as soon as it is longer than promised."""
    received, broken, most = 0, False, math.inf if file.size is None else file.size
    promised = response.length if file.size is None else file.size
    try:
        while received <= most and (chunk := response.read(CHUNK)):
            received += len(chunk)
            output.write(chunk)
    except (TimeoutError, ConnectionError, http.client.HTTPException):
        broken = True
    if broken or (received < most and response.length):  # length: bytes that the server announced but did not send
        raise UserError(
            f"The download of {file.url} broke off after {received} of {promised or 'unknown'} bytes: try again, or "
            f"download {file.name} from {page} by hand and put it into {str(folder)!r}."
        )
