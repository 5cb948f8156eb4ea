"""Processes that are started, recognised and ended by the folder they belong to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ffalm.errors import UserError
from ffalm.federate.deploy import processes, require_flower
from ffalm.federate.deploy.processes import MARK, FlowerProcess, environment, executable, free_port, mark

SLEEP = "import time; time.sleep(60)"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True); {SLEEP}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); {SLEEP}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[FlowerProcess]:
    started = FlowerProcess(tmp_path, "superlink")
    yield started
    started.stop()
    assert started.family() == []


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


def test_a_process_is_known_by_its_folder_and_ended_by_it(process: FlowerProcess, tmp_path: Path) -> None:
    process.start(_python(SLEEP))
    pid = process.pid()
    assert pid is not None
    assert FlowerProcess(tmp_path, "superlink").pid() == pid
    assert FlowerProcess(tmp_path, "superlink").stop()
    assert process.pid() is None
    assert not process.stop()
    assert not (tmp_path / "superlink.pid").exists()


def test_what_it_started_ends_with_it_even_where_it_was_detached(process: FlowerProcess) -> None:
    process.start(_python(CHILD))
    _until(lambda: len(process.family()) == 2)
    process.stop()
    assert process.family() == []


def test_what_a_killed_process_left_behind_is_ended_too(process: FlowerProcess) -> None:
    process.start(_python(CHILD))
    _until(lambda: len(process.family()) == 2)
    pid = process.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _until(lambda: process.pid() is None)
    assert len(process.family()) == 1
    assert process.stop()
    assert process.family() == []


def test_temporary_files_of_a_killed_process_are_removed_when_it_is_stopped_or_started_again(
    process: FlowerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for clear in (process.clear, process.stop):
        process.start(_python(f"import tempfile; tempfile.mkdtemp(); print('made', flush=True); {SLEEP}"))
        assert process.wait(lambda said: "made" in said, 10)
        (own,) = tmp_path.glob("ffalm-*")
        assert len(list(own.iterdir())) == 1 and own.stat().st_mode & 0o777 == 0o700
        os.kill(process.pid() or 0, signal.SIGKILL)
        _until(lambda: process.pid() is None)
        clear()
        assert not own.exists()
    own.mkdir(mode=0o755)
    with pytest.raises(UserError, match="is not this user's own"):
        process.start(_python(SLEEP))


def test_one_that_does_not_want_to_end_is_killed(process: FlowerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SECONDS_TO_END", 0.3)
    process.start(_python(STUBBORN))
    assert process.wait(lambda said: "ready" in said, 10)
    process.stop()
    assert process.family() == []


def test_a_number_that_has_become_another_process_is_left_alone(process: FlowerProcess, tmp_path: Path) -> None:
    other = subprocess.Popen(_python(SLEEP))
    try:
        (tmp_path / "superlink.pid").write_text(f"{other.pid}\n")
        assert process.pid() is None
        assert not process.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("content", ["", "nonsense", "999999999", "-1"])
def test_a_strange_pid_file_means_that_nothing_runs(process: FlowerProcess, tmp_path: Path, content: str) -> None:
    (tmp_path / "superlink.pid").write_text(content)
    assert process.pid() is None
    assert not process.stop()


def test_a_folder_has_one_process_at_a_time(process: FlowerProcess, tmp_path: Path) -> None:
    process.start(_python(SLEEP))
    with pytest.raises(UserError, match="running already"):
        FlowerProcess(tmp_path, "superlink").start(_python(SLEEP))
    assert len(process.family()) == 1


def test_a_process_counts_before_it_shows_whose_it_is(
    process: FlowerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is being loaded has no variables yet: on a busy machine another command may look just then."""
    looks = iter(range(3))
    mark_of = processes.mark_of

    def early(seen: psutil.Process | None) -> str | None:
        mark = mark_of(seen)
        return mark if seen is None or next(looks, None) is None else None

    monkeypatch.setattr(processes, "mark_of", early)
    process.start(_python(SLEEP))
    with pytest.raises(UserError, match="running already"):
        FlowerProcess(tmp_path, "superlink").start(_python(SLEEP))
    assert len(process.family()) == 1


def test_clearing_ends_what_was_left_behind_and_never_a_process_that_lives(
    process: FlowerProcess, tmp_path: Path
) -> None:
    process.start(_python(CHILD))
    _until(lambda: len(process.family()) == 2)
    pid = process.pid()
    assert pid is not None
    with pytest.raises(UserError, match="running already"):
        FlowerProcess(tmp_path, "superlink").clear()
    assert len(process.family()) == 2
    os.kill(pid, signal.SIGKILL)
    _until(lambda: process.pid() is None)
    FlowerProcess(tmp_path, "superlink").clear()
    assert process.family() == []


def test_of_many_commands_at_once_one_starts_a_process(process: FlowerProcess, tmp_path: Path) -> None:
    def attempt(own: FlowerProcess) -> str:
        try:
            own.clear()
            own.start(_python(SLEEP))
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as commands:
        own = [process, *(FlowerProcess(tmp_path, "superlink") for _ in range(7))]
        said = list(commands.map(attempt, own))
    assert said.count("") == 1, said
    assert len(process.family()) == 1
    for each in own:
        each.stop()


def test_waiting_ends_when_it_says_so_or_dies_or_time_is_up(process: FlowerProcess) -> None:
    process.start(_python("print('ready')"))
    assert process.wait(lambda said: "ready" in said, 10)
    process.join("The coordinator")
    process.start(_python("print('refused')"))
    assert not process.wait(lambda said: "ready" in said, 10), "what an earlier process said counts for nothing"
    assert process.said() == "refused\n"
    process.start(_python(SLEEP))
    assert not process.wait(lambda said: False, 0.2)


def test_a_process_that_breaks_down_is_no_good_end(process: FlowerProcess) -> None:
    process.start(_python("raise SystemExit(3)"))
    with pytest.raises(UserError, match=r"The coordinator ended unexpectedly \(code 3\): see .*superlink\.log"):
        process.join("The coordinator")


def test_one_that_another_command_ends_ends_well(process: FlowerProcess, tmp_path: Path) -> None:
    process.start(_python(SLEEP))
    FlowerProcess(tmp_path, "superlink").stop()
    process.join("The coordinator")


def test_flower_neither_phones_home_nor_installs_nor_fights_over_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", "elsewhere")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("no_proxy", "intranet")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told = environment(tmp_path)
    assert told["FLWR_HOME"] == str(tmp_path)
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert told["OMP_NUM_THREADS"] == "1"
    assert told["no_proxy"] == told["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert told["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert told[MARK] == mark(tmp_path) != mark(tmp_path / "other")


def test_commands_are_found_beside_python_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(executable(Path(sys.executable).name)).exists()
    with pytest.raises(UserError, match=r"pip install 'ffalm\[flower\]'"):
        executable("flower-nothing")


def test_without_flower_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ffalm\[flower\]'"):
        require_flower()


def test_a_free_port_is_free() -> None:
    import socket

    with socket.create_server(("127.0.0.1", free_port())) as listening:
        assert listening.fileno() >= 0
