"""Limits of memory that torch could not be imported under, and of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ffalm.system.process_limits import allow_open_files, refusal

resource = pytest.importorskip("resource")
MB = 2**20


@pytest.mark.parametrize(("kind", "command"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_a_limit_below_what_torch_needs_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str, command: str) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], resource.RLIM_INFINITY))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert refusal() is None
    limits[getattr(resource, kind)] = 300 * MB
    said = str(refusal())
    assert command in said and "300 MB" in said
    limits[getattr(resource, kind)] = 1200 * MB
    assert refusal() is None


@pytest.mark.parametrize("megabytes", [80, 300, 700])
def test_the_command_line_refuses_in_one_sentence(megabytes: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * MB, megabytes * MB))

    words = [sys.executable, "-m", "ffalm", "models"]
    done = subprocess.run(words, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("ffalm: Memory is limited to") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(256, -1, 4096), (256, 1024, 1024), (256, 9000, 4096), (5000, 9000, 5000)],
    ids=["macOS", "a low hard limit", "Linux", "enough"],
)
def test_a_few_thousand_files_may_be_open(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int) -> None:
    limits = {resource.RLIMIT_NOFILE: (soft, resource.RLIM_INFINITY if hard < 0 else hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    allow_open_files()
    assert limits[resource.RLIMIT_NOFILE][0] == then
