"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.system.files import (
    cache_folder,
    parsed_json,
    path_of,
    read_text,
    remove_leftovers,
    require_replaceable,
    sync_files,
    write_atomic,
    write_private,
)


def test_text_and_bytes_are_written_into_folders_that_need_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    assert write_atomic(path, "größer") == path
    assert path.read_text(encoding="utf-8") == "größer"
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in path.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize("write", [write_atomic, write_private])
def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    write: Callable[[Path, bytes], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[bytes | None]()

    def sync(handle: int) -> None:
        known = path.read_bytes() if path.exists() else None
        synced.append(known)

    path = tmp_path / "kept"
    monkeypatch.setattr(os, "fsync", sync)
    write(path, b"old")
    write(path, b"new")
    of_files = [known for known in synced if known != b"new"]
    assert of_files[0] is None and of_files[-1] == b"old"
    if write is write_private:  # the rename too
        assert synced == [None, b"old", b"old", b"new"]


def test_a_secret_that_cannot_be_written_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_private(tmp_path / "key", b"secret")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "kept.txt", "old")

    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError("disk full")

    monkeypatch.setattr("ffalm.system.files.synced", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["kept.txt"]


def test_on_a_read_only_disk_the_file_that_was_asked_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("ffalm.system.files.synced", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomic(tmp_path / "table.md", "new")
    assert caught.value.filename == str(tmp_path / "table.md")


@pytest.mark.parametrize(
    ("name", "words"),
    [("/dev/full", "is not a file"), ("x" * 300, "too long"), ("a\0b", "list"), ("", "is not a file"), ("n", "no")],
)
def test_what_is_no_text_file_is_refused_unread(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_text(Path(name), "list")


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFALM_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("FFALM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ffalm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "ffalm"


def test_json_that_is_nested_too_deeply_or_has_endless_numbers_is_no_json() -> None:
    assert parsed_json('{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000, "{", b"\xff", "9" * 400, f"[-{'9' * 400}]"):
        with pytest.raises(ValueError):  # noqa: PT011
            parsed_json(text)


def test_a_path_is_a_text_or_a_path(tmp_path: Path) -> None:
    assert path_of(str(tmp_path)) == path_of(tmp_path) == tmp_path
    for given in (None, 3, b"x", ["a"], "a\0b"):
        with pytest.raises(UserError, match="path must be a text or a Path"):
            path_of(given)


def test_files_are_synced_where_they_still_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr("os.fsync", synced.append)
    (tmp_path / "there").write_bytes(b"x")
    sync_files([tmp_path / "gone", tmp_path / "there"])
    assert len(synced) == 1


def test_devices_pipes_and_links_stay_what_they_are(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    file.write_text("old")
    link.symlink_to(file)
    write_atomic(link, "new")
    assert link.is_symlink() and file.read_text() == "new"
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    write_atomic(null, "lost")
    assert null.is_symlink() and Path("/dev/null").is_char_device()


def test_a_pipe_is_written_to_and_refused_where_nobody_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="Nobody reads the pipe"):
        write_atomic(pipe, "lost")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "read")
    assert os.read(reader, 10) == b"read" and pipe.is_fifo()
    os.close(reader)


def test_a_file_of_the_users_own_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "loans.csv"
    require_replaceable(file, "row,prediction", "a file of predictions")
    for content in ("", "row,prediction\n1,yes\n"):
        file.write_text(content)
        require_replaceable(file, "row,prediction", "a file of predictions")
    file.write_text("row,income\n1,20\n")
    with pytest.raises(UserError, match="exists and is not a file of predictions"):
        require_replaceable(file, "row,prediction", "a file of predictions")


def test_an_error_names_the_file_that_was_to_be_written() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(Path("/proc/out.csv"), "text")
    assert caught.value.filename == "/proc/out.csv"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of processes in /proc")
def test_what_a_process_left_that_ended_and_was_not_waited_for_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    (half := tmp_path / f".ffalm-result.json.{ended.pid}").touch()
    (own := tmp_path / f".ffalm-result.json.{os.getppid()}").touch()
    remove_leftovers(tmp_path)
    assert (half.exists(), own.exists()) == (False, True)
    ended.wait()
