"""Real processes, really killed: what is resumed equals what was never interrupted, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.conftest import Cli, start

from ffalm.algorithms.registry import _REGISTERED

ROUNDS = 40


def _progress(out: Path) -> int:
    histories = [*out.glob("history.jsonl"), *out.glob("runs/*/history.jsonl")]
    return sum(len(history.read_text().splitlines()) for history in histories)


def _wait(process: subprocess.Popen[str], out: Path, rounds: int) -> None:
    """Until the process has recorded this many rounds, or ended."""
    deadline = time.monotonic() + 300
    while process.poll() is None and _progress(out) < rounds:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.005)


def _numbers(out: Path) -> dict[str, object]:
    """All that a study came to, except for how long it took, and when."""
    found: dict[str, object] = {}
    for result in sorted(out.rglob("result.json")):
        values = json.loads(result.read_text())
        del values["seconds"], values["finished"]
        history = [json.loads(line) for line in (result.parent / "history.jsonl").read_text().splitlines()]
        for record in history:
            del record["seconds"]
        model = (result.parent / "model.safetensors").read_bytes()
        found[str(result.relative_to(out))] = (values, history, model)
    return found


def test_a_run_killed_at_a_random_point_with_its_checkpoint_cut_off_ends_as_if_it_had_not_been(
    cli: Cli, flags: list[str], tmp_path: Path
) -> None:
    study = ["run", *flags, "--rounds", ROUNDS, "--algorithm", "ffalm", "--participation", "0.7"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert cli(*study, "--out", whole)[0] == 0
    dice = random.Random(os.getpid())
    reached = dice.randrange(1, ROUNDS)
    process = start(*study, "--out", killed)
    _wait(process, killed, reached)
    time.sleep(dice.random() * 0.02)
    process.kill()
    process.communicate()
    assert _progress(killed) >= reached
    newest = sorted((killed / "checkpoint").glob("[0-9]*"))[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-20])
    code, _, said = cli("run", "--out", killed, "--resume", "--quiet")
    assert code == 0
    assert f"The checkpoint {newest.parent} is damaged (model.safetensors)" in said
    assert _numbers(killed) == _numbers(whole)


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import ffalm
@ffalm.register
@dataclass(frozen=True)
class PlainCopy(ffalm.Algorithm):
    name: ClassVar[str] = "plain-copy"
    title: ClassVar[str] = "Plain copy"
"""


def test_a_study_over_processes_with_a_plugin_survives_a_kill_leaves_no_worker_and_ends_as_in_one_process(
    cli: Cli, flags: list[str], tmp_path: Path
) -> None:
    whole, killed, plugin = tmp_path / "whole", tmp_path / "killed", tmp_path / "plain_copy.py"
    plugin.write_text(PLUGIN)
    study = ["compare", *flags, "--rounds", ROUNDS, "--plugin", plugin, "--algorithms", "plain-copy,ffalm"]
    study += ["--seeds", "1,2"]
    process = start(*study, "--workers", "2", "--out", killed)
    _wait(process, killed, random.Random(os.getpid()).randrange(5, 2 * ROUNDS))
    process.kill()
    process.communicate()
    assert not _members_of(process.pid)
    try:
        assert cli(*study, "--out", whole)[0] == 0
        code, shown, said = cli("compare", "--out", killed, "--resume", "--quiet", "--workers", "2")
    finally:
        _REGISTERED.pop("plain-copy", None)
    assert code == 0, said
    assert "Plain copy" in shown
    assert len(_numbers(whole)) == 4
    assert _numbers(killed) == _numbers(whole)


def test_ctrl_c_keeps_everything_and_says_so(flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "our study"
    process = start("compare", *flags, "--rounds", 400, "--workers", 2, "--out", out)
    _wait(process, out, 5)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"ffalm compare --out '{out}' --resume" in said
    assert "Traceback" not in said
    assert _progress(out) >= 5
    assert not _members_of(process.pid)


def _members_of(session: int) -> list[int]:
    """Processes still alive in the session that a process led, after a moment's grace."""
    deadline = time.monotonic() + 10
    while True:
        alive = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                alive.append(int(entry.name))
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.1)
