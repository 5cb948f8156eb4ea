"""A site's answers in secure sums, and the folder in which it keeps its secrets from one to the next."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.common import built_model, frozen_parameters
from ffalm.engines.remote.message import Fact, Message, understood
from ffalm.engines.server import ClientUpdate, own_step
from ffalm.errors import PublicError, UserError, require_public
from ffalm.federate.answer_ledger import AnswerLedger, digest
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.keys import SECRETS, Signer, forget_secrets
from ffalm.federate.secure.circles import needed, ring
from ffalm.federate.secure.crypto import KeyPair
from ffalm.federate.secure.fixed_point import OutOfRange, VectorLayout, Words
from ffalm.federate.secure.histogram_payload import MOST_BITS, histogram_numbers, with_histograms
from ffalm.federate.secure.misdealing import Misdealing
from ffalm.federate.secure.payload import (
    COUNTS,
    Numbers,
    counts_layout,
    round_layout,
    round_numbers,
    score_layout,
    score_numbers,
)
from ffalm.federate.secure.private_payload import NoiseShare, private_round_numbers, private_score_numbers
from ffalm.federate.secure.protocol import (
    MOST_SITES,
    Circle,
    ForwardedOffer,
    Secrets,
    Unusable,
    accept,
    confirm,
    introduced,
    mask,
    offer,
    reveal,
)
from ffalm.federate.secure.secure_settings import Secure
from ffalm.federate.terms import SiteTerms
from ffalm.studies.store import locked
from ffalm.system.files import parsed_json, write_private

log = logging.getLogger("ffalm.federate")

_OWN_FACTS = ("client", "counted", "secure", "terms")  # in a question, which differ from site to site


@dataclass(frozen=True)
class SecureSite:
    """A site as a party to secure sums: its folder, the terms it agreed to, and what its own site.toml requires."""

    folder: Path
    terms: SiteTerms
    signer: Signer
    min_sites: int  # fewest in a sum
    common: str  # the key of what all sites of the run agreed to

    @property
    def secure(self) -> Secure:
        """How answers are hidden, as agreed."""
        assert self.terms.secure is not None
        return self.terms.secure

    @property
    def ledger(self) -> AnswerLedger:
        """The questions that this site has answered in this run."""
        return AnswerLedger(self.folder, self.terms)

    def checked(self, circle: Circle) -> Circle:
        """The circle, if it is of this run and hides this site's answer as the terms and its site.toml require."""
        size = len(circle.peers) + 1
        require_public(
            circle.run == self.terms.run and circle.client == self.terms.client,
            "The coordinator asks for a secure sum of another run or site.",
        )
        everyone, names = set(circle.everyone), dict(enumerate(self.terms.sites))
        stated = {self.terms.client: self.signer.name} | {other: name for other, (name, _, _) in circle.peers.items()}
        require_public(
            stated.keys() <= everyone <= names.keys() and all(names[client] == stated[client] for client in stated),
            "The coordinator lists other sites, or other numbers of them, than was agreed.",
        )
        require_public(
            circle.threshold >= needed(size, self.secure.threshold, len(everyone))
            and circle.peers.keys() == set(ring(circle.run, everyone, self.secure.neighbours)[circle.client]),
            f"A secure sum with {size} sites of which {circle.threshold} must answer hides less than was agreed.",
        )
        self.check_size(size)
        return circle

    def check_size(self, sites: int) -> None:
        """Raise `PublicError` if a sum is over fewer sites than this site's site.toml requires.

        Count only this site and neighbours whose signatures it checks: a coordinator can make up any others.
        """
        require_public(
            sites >= self.min_sites,
            f"Its site.toml says to take part in sums of at least {self.min_sites} sites; this one is of {sites}.",
        )


class SecretStore:
    """A site's secrets of one attempt at a time, in a folder that only its owner may read.

    Hold the lock `alone` from reading secrets to writing them back: two questions must never get the same mask.
    """

    def __init__(self, folder: Path) -> None:
        self._site, self._folder = folder, folder / SECRETS
        self._key, self._attempt = self._folder / "key", self._folder / "attempt.json"

    def alone(self) -> AbstractContextManager[None]:
        """A lock against this site's other processes."""
        return locked(self._site, "secure")

    def pair(self, new: bool = False) -> KeyPair:
        """The pair with which this site seals and opens messages during a run."""
        if not self._key.exists():
            require_public(new, "This site has not been asked for its public key yet.")
            self._write(self._key, KeyPair.new().private)
        return KeyPair.of(self._key.read_bytes())

    def keep(self, secrets: Secrets) -> None:
        """Keep the secrets of an attempt, in place of those of an earlier one."""
        self._write(self._attempt, secrets.to_text().encode())

    def secrets(self, attempt: str) -> Secrets:
        """The secrets of this attempt."""
        kept = Secrets.from_text(self._attempt.read_text(encoding="utf-8")) if self._attempt.exists() else None
        if kept is None or kept.circle.attempt != attempt:
            raise PublicError("This site is not, or no longer, part of this secure sum.")
        return kept

    def forget_attempt(self) -> None:
        """Delete the secrets of the attempt."""
        self._attempt.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete everything: the run is over."""
        forget_secrets(self._site)

    def end(self) -> None:
        """Delete everything, once no other process of this site is in the middle of a move."""
        with self.alone():
            self.forget()

    def _write(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_private(path, content)


def respond(asked: Message, site: SecureSite) -> Message:
    """The answer to a question that needs no rows: the public key, an offer, a signature of the list of drop-outs, or
    shares."""
    vault, facts = SecretStore(site.folder), asked.facts
    stage = facts.get("stage")
    require_public(
        stage in ("key", "offer", "confirm", "reveal"),
        "The coordinator asks what this site does not know: use the same ffalm everywhere.",
    )
    with vault.alone():
        if stage == "key":
            key, signature = introduced(site.terms.run, site.terms.client, vault.pair(new=True), site.signer)
            return Message(facts={"key": key, "signature": signature})
        if stage == "offer":
            try:
                return Message(facts=_offered(vault, str(facts.get("circle", "")), site))
            except Unusable as error:
                return Message(facts=_refusal(error))
        kept = vault.secrets(str(facts.get("attempt", "")))
        with understood():
            lists = parsed_json(str(facts["lists"]))
            summed, dropped = ([int(client) for client in lists[name]] for name in ("summed", "dropped"))
            signatures = {int(client): str(told) for client, told in lists.get("signatures", {}).items()}
        site.check_size(kept.vouched(summed))
        if stage == "confirm":
            kept, signature = confirm(kept, summed, dropped, site.signer)
            vault.keep(kept)
            return Message(facts={"signature": signature})
        shares = reveal(kept, summed, dropped, signatures, site.signer)
        site.ledger.summed(kept.circle.purpose, summed, _dishonest(asked, kept.circle, site))
        vault.forget_attempt()
        told: dict[str, Fact] = {"shares": json.dumps({client: share.hex() for client, share in shares.items()})}
        if "circle" in facts:
            try:
                told |= _offered(vault, str(facts["circle"]), site)
            except UserError as error:  # the next sum may wait; this one's shares are revealed only once
                told |= _refusal(error)
        elif facts.get("last"):
            vault.forget()
        return Message(facts=told)


def answered_round(
    asked: Message,
    site: SecureSite,
    sent: Snapshot,
    rows: int,
    worked: Callable[[], tuple[Disclosed, ClientUpdate]],
) -> Message:
    """The masked answer to a round. `worked` scores and trains; it is called once the answer may be sent."""
    terms, purpose = site.terms, f"train {sent.round + 1}"
    algorithm, largest = terms.contender.algorithm, largest_weight(asked)
    counted = min(rows, largest)  # the rule max_share may bound it

    def found(secure: Secure, sites: int, fewest: int) -> tuple[VectorLayout, Numbers]:
        scores, reply = worked()
        moved = own_step(algorithm, sent, reply.tally, rows, terms.task)
        uploads = {name: tuple(vector) for name, vector in reply.uploads.items()}
        layout = round_layout(sent, uploads, terms.task, secure, sites, terms.privacy is not None)
        if terms.privacy is None:
            return layout, round_numbers(sent, reply, moved, scores.tally, counted)
        share = NoiseShare.of(terms.privacy, site.folder, terms.run, _drawn_for(purpose, asked, largest), fewest)
        weight = counted / largest
        frozen = frozen_parameters(built_model(terms.client_spec(torch.device("cpu"))))
        return layout, private_round_numbers(sent, reply, moved, weight, counted, share, algorithm, terms.task, frozen)

    return _masked(asked, purpose, site, counted, found)


def answered_scores(asked: Message, site: SecureSite, worked: Callable[[], dict[str, Disclosed]]) -> Message:
    """The masked answer to the last scoring."""
    terms, reach, bits = site.terms, told_reach(asked), _count_bits(asked)

    def found(secure: Secure, sites: int, fewest: int) -> tuple[VectorLayout, Numbers]:
        told = worked()
        tallies = {part: one.tally for part, one in told.items() if part != "train"}
        layout = score_layout(terms.task, secure, sites, terms.privacy is not None)
        if terms.target is not None:
            counts = histogram_numbers(told, sites, bits)
            return with_histograms(layout, terms.task, bits), {**score_numbers(tallies), **counts}
        if terms.privacy is None:
            return layout, score_numbers(tallies)
        share = NoiseShare.of(terms.privacy, site.folder, terms.run, _drawn_for("score", asked, reach), fewest)
        return layout, private_score_numbers(tallies["test"], reach, share)

    return _masked(asked, "score", site, 1, found)


def answered_counts(asked: Message, purpose: str, site: SecureSite, counted: Callable[[], Tensor]) -> Message:
    """The masked counts for a blind rule."""

    def found(secure: Secure, sites: int, fewest: int) -> tuple[VectorLayout, Numbers]:
        rows = counted()
        return counts_layout(tuple(rows.shape), sites), {COUNTS: rows.double().numpy()}

    return _masked(asked, purpose, site, 1, found)


def _masked(
    asked: Message,
    purpose: str,
    site: SecureSite,
    rows: int,
    found: Callable[[Secure, int, int], tuple[VectorLayout, Numbers]],
) -> Message:
    """The masked answer. If a number is outside the agreed range, nothing is sent but the name of its entry.

    The attempt counts as used before anything is computed, so that no second question gets its masks.
    """
    require_public("secure" in asked.facts, "This federation agreed on secure sums: this site answers in no other way.")
    with understood():
        question = parsed_json(str(asked.facts["secure"]))
        passed = {
            int(client): ForwardedOffer(
                str(key), int(least), str(dealing), str(signature), str(body), (str(first), str(second))
            )
            for client, (key, least, dealing, signature, body, first, second) in question["passed"].items()
        }
        attempt, sites, largest = str(question["attempt"]), int(question["sites"]), int(question["largest"])
        agreed = str(question["layout"])
        same = question_key(asked, site.common, agreed, largest)
    require_public(
        1 <= sites <= MOST_SITES and rows <= largest, "The coordinator's question about a secure sum cannot be true."
    )
    vault = SecretStore(site.folder)
    with vault.alone():
        before = vault.secrets(attempt)
        require_public(before.circle.purpose == purpose, "This secure sum was begun for another question.")
        site.check_size(len(passed) + 1)
        try:
            kept = accept(before, vault.pair(), passed, site.signer)
        except Unusable as error:
            return Message(facts=_refusal(error))
        fewest = max(kept.circle.threshold, kept.min_sites[kept.circle.client])  # in any sum, whoever reveals it
        bounds = site.secure.model_range, site.secure.state_range, site.secure.loss_range, site.secure.bits
        site.ledger.ranged(purpose, [*bounds, sites, _count_bits(asked)])
        kept = replace(kept, fewest=site.ledger.fewest(purpose, fewest) if site.terms.privacy else 0)
        vault.keep(kept)
    layout, numbers = found(site.secure, sites, kept.fewest)
    require_public(
        layout.key == agreed,
        "This site would lay its numbers out in another way than the coordinator: use the same ffalm everywhere.",
    )
    try:
        words = layout.words(numbers, rows / largest)
    except OutOfRange as error:
        return Message(facts={"refused": error.public})
    return Message({"masked": tensors(mask(kept, words, same))}, {"question": same})


def _count_bits(asked: Message) -> int:
    """From a question for score histograms: the bits of a count."""
    with understood():
        bits = int(asked.facts.get("count_bits", MOST_BITS))
    require_public(1 <= bits <= MOST_BITS, "The coordinator's question lacks the number of bits of a count.")
    return bits


def _drawn_for(purpose: str, asked: Message, scale: float) -> str:
    """The purpose of the noise: another question gets other noise, even if the ledger that would refuse it was lost."""
    return f"{purpose} {digest(asked.tensors)} {scale!r}"


def told_reach(asked: Message) -> float:
    """From a question for scores under privacy: the largest site's reach, by which noise is scaled."""
    with understood():
        reach = float(asked.facts.get("reach", 0.0))
    require_public(math.isfinite(reach) and reach >= 0, "The coordinator's question lacks the size of the test parts.")
    return reach


def largest_weight(asked: Message) -> int:
    """The most rows that a site is weighted by in a sum."""
    require_public("secure" in asked.facts, "This federation agreed on secure sums: this site answers in no other way.")
    with understood():
        return max(1, int(parsed_json(str(asked.facts["secure"]))["largest"]))


def question_key(asked: Message, common: str, layout: str, largest: int) -> str:
    """A fingerprint of everything in a question that must be the same for all sites in a sum, including the terms."""
    facts = {name: value for name, value in asked.facts.items() if name not in _OWN_FACTS}
    content = json.dumps([common, layout, largest, digest(asked.tensors), facts], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def passed_text(attempt: str, passed: dict[int, ForwardedOffer], layout: VectorLayout, largest: int) -> str:
    """What `_masked` reads in the fact "secure"."""
    lines = {
        client: [body.mask_key, body.min_sites, body.dealing, body.signature, body.sealed, *body.digests]
        for client, body in passed.items()
    }
    return json.dumps(
        {"attempt": attempt, "passed": lines, "layout": layout.key, "sites": layout.sites, "largest": largest}
    )


def tensors(words: Words) -> dict[str, Tensor]:
    """Words as tensors, which have signed integers only."""
    return {name: torch.from_numpy(value.view(f"i{value.itemsize}")) for name, value in words.items()}


def words_of(record: dict[str, Tensor]) -> Words:
    """The inverse of `tensors`; empty if the record has other types."""
    if not all(value.dtype in (torch.int32, torch.int64) for value in record.values()):
        return {}
    arrays = {name: value.numpy() for name, value in record.items()}
    return {name: value.view(f"u{value.itemsize}") for name, value in arrays.items()}


def _refusal(error: UserError) -> dict[str, Fact]:
    """Why this site does not go on, and the clients whose keys or offers it cannot use, for the coordinator."""
    log.warning("This site does not go on with a secure sum: %s", error)
    whose = {"unusable": json.dumps(error.clients)} if isinstance(error, Unusable) else {}
    return {"refused": error.public, **whose}


def _dishonest(asked: Message, circle: Circle, site: SecureSite) -> dict[int, str]:
    """The names, by client, of sites that are proven to have dealt false shares in an earlier attempt at this sum."""
    with understood():
        proofs = [Misdealing.from_text(str(text)) for text in parsed_json(str(asked.facts.get("misdealt", "[]")))]
    for proof in proofs:
        proof.check(circle.run, circle.purpose, site.signer)
    return {proof.client: proof.name for proof in proofs}


def _offered(vault: SecretStore, circle: str, site: SecureSite) -> dict[str, Fact]:
    kept, made = offer(site.checked(Circle.from_text(circle)), vault.pair(), site.signer, site.min_sites)
    site.ledger.numbered(dict(enumerate(site.terms.sites)))
    vault.keep(kept)
    return {"offer": made.to_text()}
