"""The run folder: a run on disk. A kill at any instant loses at most the current round.

    config.toml        complete: rerun it and get the same numbers
    history.jsonl      one record per round, appended and flushed
    checkpoint/        model, server state and round after the last whole round, and of the best where that is kept
    model.safetensors  the final model
    encoding.json      what turns new rows into the model's features, and its architecture
    repair.json        the thresholds of the study's answer, in the folder of the run that was chosen
    scores.safetensors histograms of the final model's scores on training, held-out and test rows
    client_scores.safetensors  the same of each client's own rows, if row owners are known
    blind.json         the blind rules of a real federation, or that of the study's answer, each with its counts;
                       groups/ has the model of the groups
    checksums.json     of the files of a checkpoint, or of a finished run
    result.json        the outcome; its presence says that the run is finished

Files are written under another name and then renamed. A run does not resume from a checkpoint that does not match its
checksums, but from the one before it. There is no pickle: nothing that is loaded can run code.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from ffalm.errors import UserError, require
from ffalm.fairness import ScoreHistogram
from ffalm.outcome import Outcome, Record
from ffalm.studies import checksums
from ffalm.system.file_locks import wait_for_lock
from ffalm.system.files import (
    json_text,
    parsed_json,
    read_json,
    remove_leftovers,
    sync_files,
    synced,
    unfinished,
    write_atomic,
)
from ffalm.targets.repair import GROUPS

if TYPE_CHECKING:
    from torch import Tensor

    from ffalm.engines import Snapshot
    from ffalm.runs import Result
    from ffalm.targets.stored_rules import StoredRules

T = TypeVar("T")

_LOCK_SECONDS = 30.0
_SYNC_SECONDS = 1.0  # least time between two syncs of a run's checkpoints, which take milliseconds per file
_HISTORY = "history.jsonl"
_BLIND = "blind.json"
_KEPT = "kept"  # the folder, in a checkpoint's, of the round that is best so far
_ALWAYS = ("model", "state")  # of these, the files that every checkpoint has
_INTERVALS = (
    "accuracy", "dpd", "eod", "equalized_odds", "impact_ratio", "accuracy_parity", "worst_group_accuracy",
)  # fmt: skip


@contextmanager
def locked(folder: Path, name: str = "run", patient: bool = False) -> Iterator[None]:
    """Lock a folder for this process; a dying process releases its lock by itself, so wait a little.

    A `patient` process waits for as long as another holds the lock.
    """
    with open(folder / f".{name}.lock", "w", encoding="utf-8") as lock:
        free = wait_for_lock(lock, None if patient else _LOCK_SECONDS)
        require(free, f"Another process is working in {folder}: wait for it or stop it.")
        yield


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = path / _HISTORY
        self._checkpoints = path / "checkpoint"
        self._result = path / "result.json"
        self._sync_at = 0.0
        self._recorded: tuple[int, Any] | None = None  # how many bytes of history there are, and their running digest

    def start(self, config: str) -> None:
        """Make the folder, write the settings of the run, and remove what a kill left half-written."""
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self._checkpoints):
            remove_leftovers(folder)
        write_atomic(self.path / "config.toml", config)

    def append(self, record: Record) -> None:
        """Add a round to the history."""
        line = (json_text(record) + "\n").encode()
        size, running = self._recorded or _digested(self._history)
        with open(self._history, "ab") as file:
            file.write(line)
        running.update(line)
        self._recorded = size + len(line), running

    def history(self, rounds: int | None = None) -> list[Record]:
        """The rounds recorded so far; given a number of rounds, anything after them is cut off on disk too.

        A line that a kill left half-written belongs to a round without a checkpoint.
        """
        if not self._history.exists():
            return []
        records: list[Record] = []
        lines = self._history.read_bytes().splitlines(keepends=True)
        for line in lines:
            try:
                records.append(_with_nan(parsed_json(line)))
            except (ValueError, AttributeError):
                break
        if rounds is not None:
            records = records[:rounds]
            write_atomic(self._history, b"".join(lines[: len(records)]))
            self._recorded = None
        return records

    def save(
        self, snapshot: Snapshot, kept: Snapshot | None = None, sync: bool = True, writer: Executor | None = None
    ) -> None:
        """Write a checkpoint and keep the one before it, to which runs that are computed together may have to return.

        `kept` is the model that the run would end with now; it is stored too if it is of an earlier round. Without
        `sync` nothing waits for the disk, and with a `writer` only that does.
        """
        contents = _contents(snapshot)
        if kept is not None and kept.round != snapshot.round:
            contents |= {f"{_KEPT}/{name}": content for name, content in _contents(kept).items()}
        history = None if self._recorded is None else [self._recorded[0], self._recorded[1].hexdigest()]
        contents[checksums.FILE] = checksums.listing(contents, history=history).encode()
        beside = unfinished(self._checkpoints / "new")
        shutil.rmtree(beside, ignore_errors=True)
        due = sync and time.monotonic() >= self._sync_at
        if sys.platform == "win32":
            writer = None  # Windows removes no folder of which another thread has a file open
        for name, content in contents.items():
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            synced(beside / name, content, due and writer is None)
        earlier = self._saved()
        place = beside.rename(self._checkpoints / f"{snapshot.round:06d}")
        if due:
            self._sync_at = time.monotonic() + _SYNC_SECONDS
            if writer is not None:  # until then, a power cut may leave files that do not match their checksums
                writer.submit(sync_files, [place / name for name in contents])
        for old in earlier[:-1]:
            shutil.rmtree(old)

    def saved_rounds(self) -> list[int]:
        """The rounds with a sound snapshot, in order; 0, the beginning, is always there."""
        return [0, *(int(path.name) for path in self._saved() if self._problem(path) is None)]

    def problems(self) -> list[str]:
        """A sentence on each snapshot that is damaged."""
        found = ((path, self._problem(path)) for path in self._saved())
        return [f"The checkpoint {path} is damaged ({problem})." for path, problem in found if problem is not None]

    def _problem(self, path: Path) -> str | None:
        """The file, of a snapshot or of the history up to it, that does not match its checksum."""
        broken = checksums.damaged(path)
        if broken is not None:
            return broken
        history = checksums.stored(path).get("history")
        if history is None:
            return None
        try:
            size, expected = history
            with open(self._history, "rb") as file:
                fits = checksums.digest(file.read(int(size))) == expected
        except (OSError, ValueError, TypeError):
            fits = False
        return None if fits else _HISTORY

    def snapshot(self, round: int) -> Snapshot | None:
        """The snapshot of a round, None for the beginning; later ones are deleted."""
        for path in self._saved():
            if int(path.name) > round:
                shutil.rmtree(path)
        return self._read(round)

    def kept(self, round: int) -> Snapshot | None:
        """The model that a run would end with at this round: its own, or the selected one of an earlier round."""
        return self._read(round, _KEPT if (self._checkpoints / f"{round:06d}" / _KEPT).exists() else "")

    def _read(self, round: int, within: str = "") -> Snapshot | None:
        """A snapshot in the folder of a round, None for the beginning."""
        from safetensors.torch import load_file

        from ffalm.engines import Snapshot

        if round == 0:
            return None
        place = self._checkpoints / f"{round:06d}" / within
        broken = self._problem(self._checkpoints / f"{round:06d}")
        try:
            require(broken is None, str(broken))
            number = int(read_json(place / "round.json")["round"])
            files = {name: place / f"{name}.safetensors" for name in _tensors_of(Snapshot)}
            return Snapshot(
                number,
                **{
                    name: nested_tensors(load_file(file))
                    for name, file in files.items()
                    if file.exists() or name in _ALWAYS
                },
            )
        except (UserError, SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"The checkpoint {place} is damaged ({error}): delete the folder {self.path} to repeat this run."
            ) from None

    def finish(self, result: Result, outcome: Outcome) -> None:
        """Write the final model, its scores, the checksums and, last of all, the result."""
        import torch
        from safetensors.torch import save as tensors_as_bytes

        from ffalm.trained_models.trained_model import ENCODING

        tensors = {
            "model": _owned(result.state_dict),
            "scores": {name: one.counts for name, one in result.scores.items()},
        }
        if result.client_scores:
            each = {name: torch.stack([one.counts for one in own]) for name, own in result.client_scores.items()}
            tensors["client_scores"] = each
        contents: dict[str, bytes | str] = {
            f"{name}.safetensors": tensors_as_bytes(one) for name, one in tensors.items()
        }
        if result.description is not None:
            contents[ENCODING] = json_text(result.description.to_plain(), 2) + "\n"
        for name, content in contents.items():
            write_atomic(self.path / name, content)
        stored = [one.name for one in fields(outcome) if one.name not in ("history", "place")]
        values: dict[str, Any] = {name: getattr(outcome, name) for name in stored}
        values["degenerate"] = outcome.degenerate or None
        values["clients"] = result.clients
        values["notes"] = result.notes
        values["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        text = json_text(values, indent=2)
        contents[self._result.name] = text
        if self._history.exists():
            contents[_HISTORY] = self._history.read_bytes()
        write_atomic(self.path / checksums.FILE, checksums.listing(contents))
        write_atomic(self._result, text)

    def outcome(self) -> Outcome | None:
        """The outcome of the run, None while it is not finished."""
        if not self._result.exists():
            return None
        broken = checksums.damaged(self.path)
        with_sums = [(path / checksums.FILE).exists() for path in (self.path, *self._saved())]
        if not with_sums[0] and any(with_sums):  # not a run of an earlier version: its checkpoints have checksums
            broken = checksums.FILE
        require(
            broken is None,
            f"The file {self.path / str(broken)} of a finished run is missing or damaged: restore it, or delete "
            f"{self._result} and resume, and the run is computed again.",
        )
        try:
            stored = read_json(self._result)
            values = {one.name: stored[one.name] for one in fields(Outcome) if one.name in stored}
            values["test"] = _with_nan(stored["test"])
            values["intervals"] = {name: tuple(ends) for name, ends in _with_nan(stored["intervals"]).items()}
            return Outcome(**values, history=self.history())
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise UserError(f"The result {self._result} is damaged ({error}): delete it and resume.") from None

    def finished(self) -> datetime | None:
        """When the run ended, None while it is not; of a run of version 0.11 and earlier, the time of its result file,
        which copying changes."""
        if not self._result.exists():
            return None
        try:
            return datetime.fromisoformat(read_json(self._result)["finished"])
        except (KeyError, ValueError, TypeError):
            return datetime.fromtimestamp(self._result.stat().st_mtime, UTC)

    def client_metrics(self) -> list[dict[str, float]]:
        """The final model's metrics on each client's own rows; empty for a client whose metrics are not known."""
        stored = read_json(self._result).get("clients") or []
        return [_with_nan(one) for one in stored]

    def model(self) -> dict[str, Tensor]:
        """The final model of a finished run."""
        from safetensors.torch import load_file

        return self._read_by(load_file, "model.safetensors")

    def scores(self, favourable: int, excluded: int = 0) -> dict[str, ScoreHistogram]:
        """The score histograms of a finished run by part; none for a run of version 0.2, which kept none."""
        if not (self.path / "scores.safetensors").exists():
            return {}
        return {
            name: ScoreHistogram(counts, favourable, excluded=excluded)
            for name, counts in self._arrays("scores.safetensors").items()
        }

    def client_scores(self, favourable: int, excluded: int = 0) -> list[dict[str, ScoreHistogram]]:
        """Each client's score histograms by part; empty if row owners are unknown."""
        if not (self.path / "client_scores.safetensors").exists():
            return []
        parts = self._arrays("client_scores.safetensors")
        clients = len(next(iter(parts.values())))
        return [
            {name: ScoreHistogram(counts[client], favourable, excluded=excluded) for name, counts in parts.items()}
            for client in range(clients)
        ]

    def keep_blind_rules(self, rules: StoredRules) -> None:
        """Write the blind rules of a real federation, or that of a study's answer."""
        write_atomic(self.path / _BLIND, checksums.with_checksum(rules.to_plain()))

    def drop_blind_rules(self) -> None:
        """Remove the blind rules, and the model of the groups, of an answer that is none any more."""
        (self.path / _BLIND).unlink(missing_ok=True)
        shutil.rmtree(self.path / GROUPS, ignore_errors=True)

    def blind_rules(self) -> StoredRules:
        """What `keep_blind_rules` kept."""
        from ffalm.targets.stored_rules import StoredRules

        file = self.path / _BLIND
        require(
            file.exists(),
            'This run has no blind rules: its federation.toml had no target with repair = "blind" when it ended. Give '
            "another repair, or move the run's folder away and train again.",
        )
        try:
            return StoredRules.from_plain(checksums.read_checked(file))
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"The file {file} cannot be read ({error}): restore it.") from None

    def _arrays(self, name: str) -> dict[str, Any]:
        """Counts, without torch: to import it takes longer than a report."""
        from safetensors.numpy import load_file

        return self._read_by(load_file, name)

    def _read_by(self, load_file: Callable[[Path], dict[str, T]], name: str) -> dict[str, T]:
        try:
            return load_file(self.path / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(
                f"The file {self.path / name} is damaged or missing ({error}): delete the folder to repeat this run."
            ) from None

    def _saved(self) -> list[Path]:
        found = (path for path in self._checkpoints.glob("[0-9]*") if path.is_dir() and path.name.isdecimal())
        return sorted(found, key=lambda path: int(path.name))


def _tensors_of(snapshot: Snapshot | type[Snapshot]) -> list[str]:
    """The parts of a snapshot that are tensors, each in a file of its own."""
    return [one.name for one in fields(snapshot) if one.name != "round"]


def _contents(snapshot: Snapshot) -> dict[str, bytes]:
    """The files of a snapshot by name."""
    from safetensors.torch import save as tensors_as_bytes

    files = {
        f"{name}.safetensors": tensors_as_bytes(_owned(flat_tensors(getattr(snapshot, name))))
        for name in _tensors_of(snapshot)
        if getattr(snapshot, name) or name in _ALWAYS
    }
    return {**files, "round.json": json.dumps({"round": snapshot.round}).encode()}


def _digested(path: Path) -> tuple[int, Any]:
    """The size of a file that is appended to, and a digest that can be continued."""
    content = path.read_bytes() if path.exists() else b""
    return len(content), hashlib.sha256(content)


def flat_tensors(tensors: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors by name, or by name and parameter, as a flat file holds them: under name/parameter."""
    flat: dict[str, Tensor] = {}
    for name, value in tensors.items():
        flat |= (
            {f"{name}/{inner}": tensor for inner, tensor in value.items()} if isinstance(value, dict) else {name: value}
        )
    return flat


def nested_tensors(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The inverse of `flat_tensors`."""
    nested: dict[str, Any] = {}
    for name, value in tensors.items():
        outer, _, inner = name.partition("/")
        (nested.setdefault(outer, {}) if inner else nested)[inner or outer] = value
    return nested


def outcome_of(result: Result, label: str, algorithm: str, alpha: float | None) -> Outcome:
    """A run's result in plain values; a run that diverged has no metrics."""
    return Outcome(
        label=label,
        algorithm=algorithm,
        seed=result.seed,
        alpha=alpha,
        test=result.test if result.diverged is None else dict.fromkeys(result.test, math.nan),
        intervals=_intervals(result),
        history=result.history,
        seconds=sum(record["seconds"] for record in result.history),
        diverged=result.diverged,
        confusion=None if result.tally is None else result.tally.confusion.tolist(),
        kept=result.kept,
    )


def _intervals(result: Result) -> dict[str, tuple[float, float]]:
    """95 % intervals of the test metrics that have one; none for a run that diverged, whose metrics are no result."""
    if result.tally is None or result.diverged is not None:
        return {}
    return {name: result.tally.interval(name, 0.95, result.favourable) for name in _INTERVALS}


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: on the CPU, contiguous, sharing no memory."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Undo null for numbers, in lists too: a metric that was undefined is NaN again."""
    return {name: _numbers(value) for name, value in record.items()}


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else math.nan if value is None else value
