"""One disturbance of a study, by kind: what is done to it, and what must come of it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzzing.folders import damage, numbers_of
from tests.fuzzing.outcomes import Outcome
from tests.kills.children import Child

_TINY = ("--clients", "2", "--set", "data.rows=300", "--quiet", "--model", "linear", "--target", "none")
#: Studies that differ in how their rounds are computed, kept and checkpointed.
STUDIES: dict[str, tuple[str, ...]] = {
    "loop": ("compare", "--algorithms", "fedavg,ffalm", "--seeds", "1", "--rounds", "6", "--engine", "loop",
             "--keep", "best", "--workers", "1"),
    "stacked": ("compare", "--algorithms", "fedavg,fairfed", "--seeds", "2", "--rounds", "6", "--engine", "stacked",
                "--workers", "1"),
    "private": ("run", "--algorithm", "ffalm", "--rounds", "8", "--noise", "1", "--engine", "loop", "--workers", "1"),
    "seldom": ("run", "--algorithm", "scaffold", "--rounds", "9", "--set", "checkpoint_every=4", "--engine", "loop",
               "--workers", "1", "--participation", "0.5"),
}  # fmt: skip
#: How often each kind of disturbance is drawn.
KINDS = {
    "kill": 30, "terminate": 10, "hang up": 6, "interrupt": 4, "stop and continue": 6, "disk full": 10, "small disk": 6,
    "read-only": 6, "moved": 8, "two resumers": 10, "damaged file": 25, "worker": 1, "whole group": 1,
    "real command": 1,
}  # fmt: skip


@dataclass
class Prepared:
    """What each study comes to, undisturbed, and how long that takes."""

    here: Path
    expected: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, here: Path) -> Prepared:
        """Run every study once."""
        made = cls(here)
        for name in STUDIES:
            began = time.monotonic()
            child = Child.start(_command(name, here / name))
            assert child.wait() == 0, child.said()
            made.seconds[name] = time.monotonic() - began
            made.expected[name] = _numbers(here / name)
        return made


@dataclass
class Trial:
    """One study that is disturbed."""

    made: Prepared
    draws: random.Random
    study: str
    folder: Path
    kind: str
    notes: list[str] = field(default_factory=list)
    may_refuse: bool = False

    def begin(self, resume: bool = False, workers: int = 1, most_bytes: int | None = None) -> Child:
        """Start the study, or resume it."""
        words = _command(self.study, self.folder, workers)
        return Child.start([*words, "--resume"] if resume else words, most_bytes)

    def instant(self, child: Child, times: float = 1.1) -> None:
        """Wait for a random part of the time that the study takes, or until it ends."""
        until = time.monotonic() + self.draws.random() * times * self.made.seconds[self.study]
        while child.running() and time.monotonic() < until:
            time.sleep(0.001)

    def ended(self, child: Child, *signals: int) -> None:
        """A disturbed process was ended by the signal, or said one sentence, or was done before."""
        code, said = child.wait(), child.said()
        right = code in (0, 2, 130, *(-number for number in signals)) and "Traceback" not in said
        assert right, f"exit code {code}: {said[-400:]}"
        if code in (2, 130):
            lines = _lines(said)
            told = any(line.startswith("ffalm: ") for line in lines)  # the others are results, printed before
            silent = code == 130 and self.kind == "interrupt" and not told  # who pressed Ctrl-C knows
            one = len(lines) == 1 and lines[0].startswith("ffalm: ")
            assert one or silent, f"not one sentence: {said[-400:]}"
        self.notes.append(f"{code}")

    def finished(self) -> str:
        """Resume to the end: the same numbers, or where a file was damaged a refusal."""
        child = self.begin(resume=True)
        code, said = child.wait(), child.said()
        assert code is not None, "hangs"
        assert "Traceback" not in said, said[-400:]
        if code == 2 and self.may_refuse:
            lines = _lines(said)
            assert len(lines) == 1, f"not one sentence: {said[-400:]}"
            return "refused"
        assert code == 0, f"exit code {code}: {said[-400:]}"
        assert _numbers(self.folder) == self.made.expected[self.study], "other numbers"
        left = [path.name for path in self.folder.rglob(".*") if path.name.rpartition(".")[2].isdecimal()]
        assert not left, f"left behind: {left}"
        return "same bytes"


def _lines(said: str) -> list[str]:
    """What a process said, without our warnings and without Python's about semaphores, which forked children leave."""
    return [line for line in said.splitlines() if line.strip() and "warning" not in line.lower()]


def _kill(trial: Trial, number: int) -> None:
    for attempt in range(trial.draws.choice((1, 1, 2, 3))):
        child = trial.begin(resume=attempt > 0)
        trial.instant(child)
        child.signal(number)
        trial.ended(child, signal.SIGKILL) if number == signal.SIGKILL else trial.ended(child, number)


def _pause(trial: Trial) -> None:
    child = trial.begin()
    for _ in range(3):
        trial.instant(child, 0.4)
        child.signal(signal.SIGSTOP)
        time.sleep(0.01)
        child.signal(signal.SIGCONT)
    trial.ended(child)


def _disk_full(trial: Trial) -> None:
    trial.ended(trial.begin(most_bytes=trial.draws.choice((0, 100, 500, 1000, 2000, 4000, 8000, 20_000))))


def _small_disk(trial: Trial) -> None:
    """A disk of its own, too small for the study; then it grows."""
    size = trial.draws.choice((16, 40, 64, 100, 160, 240))
    with _mounted(trial.folder, f"size={size}k") as grow:
        trial.ended(trial.begin())
        grow("remount,size=64m")
        trial.notes.append(trial.finished())


def _read_only(trial: Trial) -> None:
    with _mounted(trial.folder, "size=64m") as remount:
        child = trial.begin()
        trial.instant(child)
        child.signal(signal.SIGSTOP)
        frozen = remount("remount,ro")
        child.signal(signal.SIGCONT)
        trial.ended(child)
        if frozen:
            remount("remount,rw")
        trial.notes.append(trial.finished())


def _moved(trial: Trial) -> None:
    child, elsewhere = trial.begin(), trial.folder.with_name(f"{trial.folder.name}-moved")
    trial.instant(child)
    if not trial.folder.exists():
        trial.ended(child)
        return
    trial.folder.rename(elsewhere)
    trial.ended(child)
    shutil.rmtree(trial.folder, ignore_errors=True)  # what it wrote at the old place
    elsewhere.rename(trial.folder)


def _two_resumers(trial: Trial) -> None:
    _kill(trial, signal.SIGKILL)
    both = [trial.begin(resume=True), trial.begin(resume=True)]
    for child in both:
        trial.ended(child)


def _damaged(trial: Trial) -> None:
    _kill(trial, signal.SIGKILL)
    if any(path.is_file() for path in trial.folder.rglob("[!.]*")):
        trial.notes.append(damage(trial.draws, trial.folder))
        trial.may_refuse = True


def _with_workers(trial: Trial, group: bool) -> None:
    """A study over two processes, of which one worker, or all at once, are killed."""
    child = trial.begin(workers=2)
    time.sleep(trial.draws.random() * 8)
    if group:
        child.signal(signal.SIGKILL, group=True)
    else:
        workers = [pid for pid in _children_of(child.pid) if "spawn_main" in _words_of(pid)]
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
    trial.ended(child, signal.SIGKILL)


def _real(trial: Trial) -> None:
    """The command as a user starts it, with its report, killed at an instant."""
    words = [sys.executable, "-m", "ffalm", *_command(trial.study, trial.folder)]
    started = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        started.wait(trial.draws.random() * 12)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


ACTIONS: dict[str, Callable[[Trial], None]] = {
    "kill": lambda trial: _kill(trial, signal.SIGKILL),
    "terminate": lambda trial: _kill(trial, signal.SIGTERM),
    "hang up": lambda trial: _kill(trial, signal.SIGHUP),
    "interrupt": lambda trial: _kill(trial, signal.SIGINT),
    "stop and continue": _pause,
    "disk full": _disk_full,
    "small disk": _small_disk,
    "read-only": _read_only,
    "moved": _moved,
    "two resumers": _two_resumers,
    "damaged file": _damaged,
    "worker": lambda trial: _with_workers(trial, False),
    "whole group": lambda trial: _with_workers(trial, True),
    "real command": _real,
}


def run(number: int, seed: int, made: Prepared) -> tuple[Outcome, str]:
    """One trial by its number."""
    draws = random.Random(f"{seed}-{number}")
    kinds = dict(KINDS)
    if os.geteuid() != 0:  # nobody else may mount a disk
        kinds = {kind: share for kind, share in kinds.items() if kind not in ("small disk", "read-only")}
    kind, study = draws.choices(list(kinds), list(kinds.values()))[0], draws.choice(list(STUDIES))
    study = "stacked" if kind in ("worker", "whole group") else study
    folder = made.here / f"trial-{number}"
    trial = Trial(made, draws, study, folder, kind)
    try:
        ACTIONS[kind](trial)
        outcome = trial.notes[-1] if kind in ("small disk", "read-only") else trial.finished()
        return Outcome(True, f"{kind}: {outcome}"), f"{study} {trial.notes}"
    except AssertionError as error:
        return Outcome(False, kind, str(error)[-500:]), f"{study} {trial.notes}"
    finally:
        for path in made.here.glob(f"trial-{number}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _command(study: str, folder: Path, workers: int = 1) -> list[str]:
    words = [*STUDIES[study], *_TINY, "--out", str(folder)]
    if workers > 1:
        words[words.index("--workers") + 1] = str(workers)
    return words


def _numbers(folder: Path) -> dict[str, Any]:
    """Of a study of several runs, or of one whose run is its folder."""
    return numbers_of(folder) or numbers_of_run(folder)


def numbers_of_run(folder: Path) -> dict[str, Any]:
    """All that a run came to, except for how long it took, and when."""
    import json

    if not (folder / "result.json").exists():
        return {}
    lines = (folder / "history.jsonl").read_text().splitlines()
    records = [json.loads((folder / "result.json").read_text()), *map(json.loads, lines)]
    kept = [
        {name: value for name, value in record.items() if name not in ("seconds", "finished")} for record in records
    ]
    return {"run": (kept, (folder / "model.safetensors").read_bytes())}


class _mounted:  # noqa: N801
    """A file system in memory at a folder; called, it mounts it anew with other options, and says if that worked."""

    def __init__(self, folder: Path, options: str) -> None:
        self._folder, self._options = folder, options

    def __enter__(self) -> Callable[[str], bool]:
        self._folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", self._options, "tmpfs", self._folder], check=True)
        return lambda options: (
            subprocess.run(["mount", "-o", options, self._folder], check=False, capture_output=True).returncode == 0
        )

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self._folder], check=True)


def _children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
