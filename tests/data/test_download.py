from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from ffalm.data.download import PUBLICATIONS, Publication, PublishedFile, fetch
from ffalm.errors import UserError

BODY = bytes(range(256)) * 1000  # several chunks long


class Publisher(BaseHTTPRequestHandler):
    """A publisher who keeps some files, breaks off in one, sends a page for another and lacks the rest."""

    asked: ClassVar[list[str]] = []
    hung_up = threading.Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        promised, sent = {
            "/good": (len(BODY), BODY),
            "/other": (len(BODY), BODY[::-1]),
            "/page": (14, b"<html>no</html>"[:14]),
            "/cut": (len(BODY), BODY[:1000]),
            "/endless": (200 * len(BODY), BODY * 200),  # more than any socket buffers
        }[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        try:
            self.wfile.write(sent)
        except ConnectionError:
            self.hung_up.set()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Publisher, "asked", [])
    monkeypatch.setattr(Publisher, "hung_up", threading.Event())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def publication(address: str, path: str) -> Publication:
    file = PublishedFile("set.csv", f"{address}{path}", len(BODY), hashlib.sha256(BODY).hexdigest())
    return Publication(page="https://example.org/set", files=(file,))


def refusal(address: str, path: str, folder: Path) -> str:
    """The one sentence with which a download fails, after which nothing half-done may lie about."""
    before = sorted(folder.iterdir())
    with pytest.raises(UserError) as caught:
        fetch(publication(address, path), folder)
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before
    return str(caught.value)


def test_a_file_is_downloaded_checked_and_told(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    (got,) = fetch(publication(address, "/good"), folder)
    assert got.downloaded and got.path.read_bytes() == BODY
    assert got.message == f"Downloaded {folder / 'set.csv'} and checked it."
    assert [path.name for path in folder.iterdir()] == ["set.csv"]


def test_a_good_file_is_not_downloaded_again(address: str, tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_bytes(BODY)
    (got,) = fetch(publication(address, "/good"), tmp_path)
    assert not got.downloaded and "already there" in got.message
    assert Publisher.asked == []


def test_a_file_of_the_users_own_is_never_overwritten(address: str, tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_bytes(b"mine")
    assert "is not the published file" in refusal(address, "/good", tmp_path)
    assert (tmp_path / "set.csv").read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["/other", "/page", "/endless"])
def test_a_wrong_checksum_is_refused_and_nothing_is_kept(address: str, tmp_path: Path, path: str) -> None:
    message = refusal(address, path, tmp_path)
    assert "not the published set.csv (its checksum differs)" in message
    assert "https://example.org/set" in message


def test_a_body_longer_than_the_published_file_is_not_read_to_its_end(address: str, tmp_path: Path) -> None:
    refusal(address, "/endless", tmp_path)
    assert Publisher.hung_up.wait(timeout=5)


def test_a_body_that_breaks_off_is_told_with_its_length(address: str, tmp_path: Path) -> None:
    assert f"broke off after 1000 of {len(BODY)} bytes" in refusal(address, "/cut", tmp_path)


def test_a_missing_file_at_the_publisher_is_told(address: str, tmp_path: Path) -> None:
    assert "answered 404" in refusal(address, "/missing", tmp_path)


def test_no_network_says_what_to_do_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    message = refusal("http://127.0.0.1:9", "/good", tmp_path)
    assert "cannot be reached" in message
    assert f"download set.csv from https://example.org/set by hand and put it into '{tmp_path}'" in message


def test_a_folder_that_cannot_be_made_is_told(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"folder .* cannot be made"):
        fetch(publication(address, "/good"), tmp_path / "file" / "inner")


def test_an_unknown_set_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'adult'"):
        fetch("adlut", tmp_path)


def test_every_published_file_has_a_secure_address_and_a_whole_checksum() -> None:
    for published in PUBLICATIONS.values():
        assert published.page.startswith("https://")
        for file in published.files:
            assert file.url.startswith("https://") and file.url.endswith(file.name)
            assert file.sha256 is not None and len(file.sha256) == 64


@pytest.mark.parametrize("name", ["adult", "compas"])
def test_the_checksums_are_those_of_the_real_files(shared_data: Path, name: str) -> None:
    got = fetch(name, shared_data / "tabular")
    assert got and not any(file.downloaded for file in got)
    assert all(
        file.path.stat().st_size == known.size for file, known in zip(got, PUBLICATIONS[name].files, strict=True)
    )
