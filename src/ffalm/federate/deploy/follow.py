"""Submits a run and watches it by the files in its folder until it ends."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffalm.errors import UserError
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.operations import CoordinatorProcess
from ffalm.federate.deploy.process_log import logs_of, rotate
from ffalm.system.files import parsed_json, read_json, write_atomic

Record = dict[str, Any]

_SECONDS_A_LOOK = 0.3
_SECONDS_TO_START = 60.0


def records(folder: FederationFolder) -> list[Record]:
    """The rounds that the run has recorded so far; read without torch, also while they are being written."""
    path = folder.run / "history.jsonl"
    found: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(parsed_json(line))
        except json.JSONDecodeError:
            break
    return found


def result(folder: FederationFolder) -> Record | None:
    """The result of the run; None until it is finished, for a training until its report, the last file, is written.

    A run that was killed before that writes the missing files when it is started again, without asking the sites.
    """
    complete = folder.audit or (folder.run / "report.md").exists()
    return _written(folder.run / "result.json") if complete else None


def doing(folder: FederationFolder) -> Record:
    """The last status of the coordinator: `state`, `round` and `message`; empty before it began."""
    return _written(_status(folder)) or {}


def submit(coordinator: CoordinatorProcess) -> int:
    """Start the training, or go on from the run folder; the number of Flower's run."""
    coordinator.folder.write_app()
    _status(coordinator.folder).unlink(missing_ok=True)
    run = coordinator.control.submit(coordinator.folder.app)
    write_atomic(_last_run(coordinator.folder), json.dumps({"run": run, "superlink": coordinator.process.pid()}))
    return run


def await_start(coordinator: CoordinatorProcess, run: int) -> None:
    """Return when a run has a status; raises `UserError` with the reason if it ends before."""
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and not (state := doing(coordinator.folder).get("state")):
        if coordinator.process.pid() is None or not _still_runs(coordinator, run):
            state = "stopped"
            break
        time.sleep(_SECONDS_A_LOOK)
    if state == "stopped" and result(coordinator.folder) is None:
        raise UserError(_why(coordinator, run, coordinator.folder.coordinator / "run.log"))


def under_way(coordinator: CoordinatorProcess) -> int | None:
    """The SuperLink's current run.

    A run of an earlier SuperLink ended with it, although Flower's database calls it running for a while.
    """
    try:
        last = read_json(_last_run(coordinator.folder))
    except (OSError, ValueError):
        return None
    pid = coordinator.process.pid()
    if pid is None or last["superlink"] != pid or not _still_runs(coordinator, int(last["run"])):
        return None
    return int(last["run"])


def watch(
    coordinator: CoordinatorProcess,
    run: int,
    on_records: Callable[[list[Record]], None],
    on_event: Callable[[str], None],
) -> Record:
    """Pass on new rounds and the coordinator's messages about sites until the run ends.

    Returns its result; raises `UserError` with the reason if there is none.
    """
    folder, log = coordinator.folder, coordinator.folder.coordinator / "run.log"
    events, logs = Events(folder), logs_of(folder.facts)
    follower = coordinator.control.follow(run, log)
    try:
        while result(folder) is None and coordinator.process.pid() is not None:
            if follower.poll() is not None:  # it ends when the run does, or when it lost the connection
                if not _still_runs(coordinator, run):
                    break
                follower = coordinator.control.follow(run, log)
            rotate(log, logs)
            on_records(records(folder))
            for message in events.since():
                on_event(message)
            time.sleep(_SECONDS_A_LOOK)
    finally:
        follower.terminate()
        follower.wait()
    on_records(records(folder))
    found = result(folder)
    if found is None:
        raise UserError(_why(coordinator, run, log))
    return found


class Events:
    """A run's messages about its sites from now on: who is waited for, who joined, who was left out and why."""

    def __init__(self, folder: FederationFolder) -> None:
        self._file = folder.run / "events.jsonl"
        self._read = self._file.stat().st_size if self._file.exists() else 0

    def since(self) -> list[str]:
        """The messages since the last look, each when its line is complete."""
        if not self._file.exists():
            return []
        with open(self._file, "rb") as file:
            file.seek(self._read)
            lines = [line for line in file if line.endswith(b"\n")]
        self._read += sum(map(len, lines))
        return [str(parsed_json(line)["message"]) for line in lines]


def _still_runs(coordinator: CoordinatorProcess, run: int) -> bool:
    try:
        return not coordinator.control.status(run).startswith("finished")
    except UserError:
        return False


def _why(coordinator: CoordinatorProcess, run: int, log: Path) -> str:
    """Why a run ended without a result, in one sentence: the coordinator's own if it stopped by itself."""
    again = f"go on with `ffalm federate run {shlex.quote(str(coordinator.folder.path))}`"
    if coordinator.process.pid() is None:
        return f"The coordinator stopped, and the rounds so far are kept: start it again and {again}."
    last = doing(coordinator.folder)
    if last.get("state") == "stopped":
        return str(last["message"])
    reason = coordinator.control.details(run).splitlines()[0].rstrip(".")
    return f"The run ended without a result: {reason}. See {log}; the rounds so far are kept, {again}."


def _written(path: Path) -> Record | None:
    try:
        found: Record = read_json(path)
    except FileNotFoundError:
        return None
    return found


def _status(folder: FederationFolder) -> Path:
    return folder.run / "status.json"


def _last_run(folder: FederationFolder) -> Path:
    return folder.coordinator / "run.json"
