"""A site's answers in secure sums, and the folder in which it keeps its secrets from one to the next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Fact, Message
from ffalm.engines.server import ClientUpdate, own_step
from ffalm.errors import PublicError, require_public
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.secure.crypto import KeyPair
from ffalm.federate.secure.fixed_point import OutOfRange, VectorLayout, Words
from ffalm.federate.secure.histogram_payload import histogram_numbers, with_histograms
from ffalm.federate.secure.payload import (
    Numbers,
    round_layout,
    round_numbers,
    score_layout,
    score_numbers,
)
from ffalm.federate.secure.protocol import Circle, Passed, Secrets, accept, mask, offer, reveal
from ffalm.federate.secure.secure_settings import Secure
from ffalm.federate.terms import SiteTerms
from ffalm.files import write_private


class Vault:
    """A site's secrets, in a folder that only its owner may read. It holds those of one attempt at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".secure"
        self._key, self._attempt = self._folder / "key", self._folder / "attempt.json"

    def pair(self, new: bool = False) -> KeyPair:
        """The pair with which this site seals and opens messages; it lasts for a run."""
        if not self._key.exists():
            require_public(new, "This site has not been asked for its public key yet.")
            self._write(self._key, KeyPair.new().private)
        return KeyPair.of(self._key.read_bytes())

    def keep(self, secrets: Secrets) -> None:
        """Keep the secrets of an attempt; those of an earlier one are gone with this."""
        self._write(self._attempt, secrets.to_text().encode())

    def secrets(self, attempt: str) -> Secrets:
        """The secrets of the attempt under way."""
        kept = Secrets.from_text(self._attempt.read_text(encoding="utf-8")) if self._attempt.exists() else None
        if kept is None or kept.circle.attempt != attempt:
            raise PublicError("This site takes no part in this secure sum, or no longer.")
        return kept

    def forget_attempt(self) -> None:
        """Delete the secrets of the attempt."""
        self._attempt.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete everything: the run is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_private(path, content)


def respond(asked: Message, folder: Path) -> Message:
    """The answer to a question that is about secrets alone: for the public key, for an offer, or to reveal shares."""
    vault, facts = Vault(folder), asked.facts
    stage = facts.get("stage")
    if stage == "key":
        return Message(facts={"key": vault.pair(new=True).public.hex()})
    if stage == "offer":
        return Message(facts=_offered(vault, str(facts["circle"])))
    require_public(
        stage == "reveal", "The coordinator asks what this site does not know: use the same ffalm everywhere."
    )
    kept = vault.secrets(str(facts["attempt"]))
    lists = json.loads(str(facts["lists"]))
    shares = reveal(kept, [int(client) for client in lists["summed"]], [int(client) for client in lists["dropped"]])
    vault.forget_attempt()
    told: dict[str, Fact] = {"shares": json.dumps({client: share.hex() for client, share in shares.items()})}
    if "circle" in facts:
        told |= _offered(vault, str(facts["circle"]))
    elif facts.get("last"):
        vault.forget()
    return Message(facts=told)


def answered_round(
    asked: Message,
    folder: Path,
    terms: SiteTerms,
    sent: Snapshot,
    rows: int,
    worked: Callable[[], tuple[Disclosed, ClientUpdate]],
) -> Message:
    """The answer to a round, masked. `worked` scores and trains, once it is clear that the answer may be sent."""

    def found(secure: Secure, sites: int) -> tuple[VectorLayout, Numbers]:
        scores, reply = worked()
        moved = own_step(terms.contender.algorithm, sent, reply.tally, rows, terms.task)
        uploads = {name: tuple(vector) for name, vector in reply.uploads.items()}
        layout = round_layout(sent, uploads, terms.task, secure, sites)
        return layout, round_numbers(sent, reply, moved, scores.tally, rows)

    return _masked(asked, folder, terms, rows, found)


def answered_scores(
    asked: Message, folder: Path, terms: SiteTerms, worked: Callable[[], dict[str, Disclosed]]
) -> Message:
    """The answer to the last scoring, masked."""

    def found(secure: Secure, sites: int) -> tuple[VectorLayout, Numbers]:
        told = worked()
        numbers = score_numbers({part: one.tally for part, one in told.items()})
        layout = score_layout(terms.task, secure, sites)
        if terms.target is None:
            return layout, numbers
        return with_histograms(layout, terms.task), {**numbers, **histogram_numbers(told)}

    return _masked(asked, folder, terms, 1, found)


def _masked(
    asked: Message,
    folder: Path,
    terms: SiteTerms,
    rows: int,
    found: Callable[[Secure, int], tuple[VectorLayout, Numbers]],
) -> Message:
    """What may leave the site. Numbers outside the agreed ranges do not: the answer says which they are."""
    question = json.loads(str(asked.facts.get("secure", "null")))
    require_public(question is not None, "This federation agreed on secure sums: this site answers in no other way.")
    assert terms.secure is not None
    vault = Vault(folder)
    passed = {
        int(client): Passed(str(key), str(body), (str(first), str(second)))
        for client, (key, body, first, second) in question["passed"].items()
    }
    kept = accept(vault.secrets(str(question["attempt"])), vault.pair(), passed)
    layout, numbers = found(terms.secure, int(question["sites"]))
    require_public(
        layout.key == question["layout"],
        "This site would lay its numbers out in another way than the coordinator: use the same ffalm everywhere.",
    )
    try:
        words = layout.words(numbers, rows / int(question["largest"]))
    except OutOfRange as error:
        return Message(facts={"refused": error.public})
    vault.keep(kept)
    return Message({"masked": tensors(mask(kept, words))})


def passed_text(attempt: str, passed: dict[int, Passed], layout: VectorLayout, largest: int) -> str:
    """What `masked_answer` reads in the fact "secure"."""
    lines = {client: [body.mask_key, body.sealed, *body.digests] for client, body in passed.items()}
    return json.dumps(
        {"attempt": attempt, "passed": lines, "layout": layout.key, "sites": layout.sites, "largest": largest}
    )


def tensors(words: Words) -> dict[str, Tensor]:
    """Words as tensors, which know signed numbers only."""
    return {name: torch.from_numpy(value.view(f"i{value.itemsize}")) for name, value in words.items()}


def words_of(record: dict[str, Tensor]) -> Words:
    """The inverse of `tensors`; nothing where a record is none of its results."""
    if not all(value.dtype in (torch.int32, torch.int64) for value in record.values()):
        return {}
    arrays = {name: value.numpy() for name, value in record.items()}
    return {name: value.view(f"u{value.itemsize}") for name, value in arrays.items()}


def _offered(vault: Vault, circle: str) -> dict[str, Fact]:
    kept, made = offer(Circle.from_text(circle), vault.pair())
    vault.keep(kept)
    return {"offer": made.to_text()}
