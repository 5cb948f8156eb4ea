"""The files in a federation's run folder, except checkpoints and results.

encoding.json  what was agreed; its presence says that the agreement is complete
sites.json     the members and their rows; who missed which round, and why; which cells are withheld
status.json    what the coordinator is doing: state, round and a message; with the state "stopped", why it ended
events.jsonl   when which sites were waited for, joined or were left out
run_id         a name that no other run has
history.jsonl  one record per round; its validation metrics arrive with the answers of the next round
"""

from __future__ import annotations

import datetime
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.engines.remote.message import printable
from ffalm.errors import UserError
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.disclosure import Scored, cells
from ffalm.outcome import Record
from ffalm.studies.store import RunFolder
from ffalm.system.files import json_text, read_json, write_atomic

log = logging.getLogger("ffalm.federate")

_EVENTS = (
    "meeting",
    "agreeing",
    "waiting",
    "groups",
)  # states with messages about sites, or about what follows the rounds


class RunLog:
    """The records of one run."""

    def __init__(self, run: RunFolder, sites: tuple[str, ...]) -> None:
        self._run, self._names = run, sites
        self._encoding, self._sites = run.path / "encoding.json", run.path / "sites.json"
        self.history: list[Record] = []
        self._last = ""

    def say(self, state: str, message: str) -> None:
        """Record what the coordinator is doing: in the log, `status.json` and, unless it is a round, `events.jsonl`."""
        message = printable(message)
        log.info(message)
        round = self.history[-1]["round"] if self.history else 0
        write_atomic(self._run.path / "status.json", json_text({"state": state, "round": round, "message": message}))
        if state in _EVENTS and message != self._last:
            self._last = message
            time = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
            with open(self._run.path / "events.jsonl", "a", encoding="utf-8") as events:
                events.write(json_text({"time": time, "state": state, "message": message}) + "\n")

    def run_id(self) -> str:
        """A name that no other run has: sites answer each question of a run once."""
        file = self._run.path / "run_id"
        if not file.exists():
            write_atomic(file, secrets.token_hex(8))
        return file.read_text(encoding="utf-8")

    def agreement(self) -> Agreement | None:
        """The stored agreement; None if there is none yet."""
        return Agreement.load(self._encoding) if self._encoding.exists() else None

    def counts(self, task: Task) -> dict[str, Counts]:
        """The agreed rows of each member."""
        try:
            entries = read_json(self._sites)["sites"]
            rows = {entry["name"]: entry["rows"] for entry in entries if entry["rows"] is not None}
            return {name: Counts.of(_tensors(record), task) for name, record in rows.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"The file {self._sites} cannot be read ({error}): restore it, or delete the run."
            ) from None

    def refused(self) -> dict[str, str]:
        """Why sites were left out when their entries were last written."""
        entries = read_json(self._sites)["sites"]
        return {entry["name"]: printable(str(entry["refused"])) for entry in entries if entry.get("refused")}

    def keep_members(self, agreement: Agreement, counts: Mapping[str, Counts], refused: Mapping[str, str]) -> None:
        """Write the members, then the agreement, whose file marks both as complete."""
        self.write_sites(agreement.task, counts, refused)
        if not self._encoding.exists():
            self.keep_agreement(agreement)

    def keep_agreement(self, agreement: Agreement) -> None:
        """Write the agreement."""
        agreement.save(self._encoding)

    def write_sites(
        self,
        task: Task,
        counts: Mapping[str, Counts],
        refused: Mapping[str, str],
        scores: Mapping[str, dict[str, float]] | None = None,
        answered: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write `sites.json`; once the final model is scored, with each site's own metrics and what the answer to a
        fairness target says about it."""
        entries = [
            {
                "name": name,
                "client": client,
                "rows": None if name not in counts else {key: v.tolist() for key, v in counts[name].record().items()},
                "refused": refused.get(name),
                "missed": self._seen("missed", name),
                "quarantined": self._seen("quarantined", name),
                "withheld": {} if name not in counts else _hidden(counts[name], task),
                "test": (scores or {}).get(name),
                **(answered or {}).get(name, {}),
            }
            for client, name in enumerate(self._names)
        ]
        write_atomic(self._sites, json_text({"sites": entries}, indent=2) + "\n")

    def go_back_to(self, round: int) -> None:
        """Forget the rounds after this one, which have no checkpoint."""
        self.history = self._run.history(round)

    def counted(self) -> dict[str, int]:
        """The last round of each site whose answer counted."""
        return {site: record["round"] for record in self.history for site in record["answered"]}

    def add(self, record: Record) -> None:
        """A round, whose metrics are still to come."""
        self.history.append(record)
        self._write_history()

    def complete(self, round: int, scored: Scored, task: Task) -> None:
        """The validation metrics of the model that a round ended with, from the sites that scored it."""
        if round == 0 or not scored.sites:
            return
        record = self.history[round - 1]
        metrics = scored.tally.excluding(task.excluded).metrics(task.favourable)
        rest = {name: value for name, value in record.items() if name != "round"}
        self.history[round - 1] = {"round": round, **rest, **metrics, "scored": list(scored.sites)}
        self._write_history()

    def _write_history(self) -> None:
        lines = "".join(json_text(record) + "\n" for record in self.history)
        write_atomic(self._run.path / "history.jsonl", lines)

    def _seen(self, what: str, name: str) -> dict[str, str]:
        """The rounds in which a site was missed or quarantined, with the reasons."""
        return {str(record["round"]): record[what][name] for record in self.history if name in record.get(what, {})}


def _hidden(counts: Counts, task: Task) -> dict[str, list[str]]:
    return {part: cells(mask, task) for part, mask in counts.withheld.items() if bool(mask.any())}


def _tensors(record: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(value, dtype=torch.bool if name.endswith(".withheld") else torch.int64)
        for name, value in record.items()
    }
