"""Logs stay within bounds while processes that know nothing of it go on writing to them."""

from __future__ import annotations

import errno
import sys
import time
from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.federate.deploy import process_log
from ffalm.federate.deploy.process_log import environment_of, keep_rotating, logs_of, rotate
from ffalm.federate.service_settings import Logs

SMALL = Logs(max_megabytes=100 / 2**20, keep=2)


def test_a_writer_goes_on_in_a_file_that_was_rotated_under_it(tmp_path: Path) -> None:
    file = tmp_path / "supernode.log"
    with open(file, "ab", buffering=0) as writer:
        for number in range(4):
            writer.write(f"{number}".encode() * 101)
            assert rotate(file, SMALL)
            assert not rotate(file, SMALL)
        writer.write(b"now")
    assert file.read_bytes() == b"now"
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.log.*")}
    assert kept == {"supernode.log.1": b"3" * 101, "supernode.log.2": b"2" * 101}


def test_no_log_is_lost_where_a_full_disk_has_no_room_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.log"
    for name, content in {"run.log": b"x" * 101, "run.log.1": b"earlier", "run.log.2": b"first"}.items():
        (tmp_path / name).write_bytes(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(log: int, target: Path) -> None:
        target.write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(process_log, "_copy", full)
    for _ in range(3):
        assert not rotate(file, SMALL)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_is_rotated_below_the_size_or_where_it_is_off(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    assert not rotate(file, SMALL)
    file.write_bytes(b"x" * 100)
    assert not rotate(file, SMALL)
    file.write_bytes(b"x" * 101)
    assert not rotate(file, Logs(max_megabytes=0))
    assert rotate(file, Logs(SMALL.max_megabytes, keep=0))
    assert [path.name for path in tmp_path.iterdir()] == ["run.log"] and file.stat().st_size == 0


def test_a_process_keeps_its_own_log_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "superlink.log"
    for name, value in environment_of(file, SMALL).items():
        monkeypatch.setenv(name, value)
    file.write_bytes(b"x" * 101)
    ended = keep_rotating(0.001)
    deadline = time.monotonic() + 10
    while file.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.001)
    ended.set()
    assert file.stat().st_size == 0 and (tmp_path / "superlink.log.1").stat().st_size == 101


def test_a_log_that_is_too_large_is_rotated_before_a_process_starts_and_its_words_are_its_own(tmp_path: Path) -> None:
    pytest.importorskip("psutil", reason="real federations need the extra 'flower'")
    from ffalm.federate.deploy.processes import FlowerProcess

    process = FlowerProcess(tmp_path, "supernode")
    process.log.write_bytes(b"x" * 101)
    process.start([sys.executable, "-S", "-c", "print('new')"], SMALL)
    assert process.wait(lambda said: "new" in said, 20)
    process.stop()
    assert process.said() == "new\n"
    assert (tmp_path / "supernode.log.1").read_bytes() == b"x" * 101


def test_settings_are_checked() -> None:
    assert logs_of({}) == Logs(20.0, 5)
    assert logs_of({"logs": {"max_megabytes": 1, "keep": 0}}).most_bytes == 2**20
    with pytest.raises(UserError, match="'keep'"):
        logs_of({"logs": {"keep": -1}})
