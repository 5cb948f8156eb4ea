"""A site that does not follow the protocol: the others go on without it where they can, and it is named."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federate.makers import NAMES, World, config, exchange_keys, world
from tests.federate.secure.parties import Attempt, attempt

from ffalm.engines.remote.message import Fact, Failure, Kind, Message
from ffalm.errors import PublicError, UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.keys import NodeSigner
from ffalm.federate.secure import protocol, shamir
from ffalm.federate.secure.aggregator import TooFew
from ffalm.federate.secure.misdealing import Misdealing
from ffalm.federate.secure.protocol import Circle, Offer, _key_statement, offer_statement

Lie = Callable[[Message, Message, NodeSigner], Message]
"""Given a question, the honest answer and the site's signer: what the site says."""


class Dishonest(World):
    """A federation of four whose last site, east, lies; `failures` is what the others could not answer."""

    def __init__(self, root: Path, lie: Lie) -> None:
        super().__init__(world(root, (50, 40, 45, 40)).folders)
        exchange_keys(self.folders)
        self._lie, self.failures = lie, dict[str, str]()

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        found = super()._answer(kind, name, message)
        if isinstance(found, Failure):
            self.failures[name] = found.reason
        elif name == "east":
            found = self._lie(message, found, NodeSigner(self.folders[name], name))
        return found


def plan() -> FederationConfig:
    return config(NAMES, rules={"secure": True, "patience": 0.0}, training={"rounds": 2})


def of_offers(change: Callable[[Offer], Offer], signed: bool = True) -> Lie:
    """A lie in every offer, signed as an honest one."""

    def lie(asked: Message, given: Message, signer: NodeSigner) -> Message:
        if "offer" not in given.facts:
            return given
        made = change(Offer.from_text(str(given.facts["offer"])))
        circle = Circle.from_text(str(asked.facts["circle"]))
        statement = offer_statement(circle, circle.client, made.mask_key, made.min_sites, made.dealing.fingerprint)
        made = replace(made, signature=signer.sign(statement if signed else "something else"))
        return replace(given, facts={**given.facts, "offer": made.to_text()})

    return lie


def of_keys(key: str, signed: bool = True) -> Lie:
    """A lie about the key for sealed messages, signed as an honest one."""

    def lie(asked: Message, given: Message, signer: NodeSigner) -> Message:
        if asked.facts.get("stage") != "key":
            return given
        terms = json.loads((signer.folder / "agreed.json").read_text())
        signature = signer.sign(_key_statement(terms["run"], terms["client"], "east", key) if signed else "no")
        return replace(given, facts={"key": key, "signature": signature})

    return lie


def announcing(made: Offer, **changes: Any) -> Offer:
    return replace(made, dealing=replace(made.dealing, **changes))


def resealed(made: Offer) -> Offer:
    return replace(made, sealed=dict.fromkeys(made.sealed, "00" * 60))


def misannounced(made: Offer) -> Offer:
    return announcing(made, digests=dict.fromkeys(made.dealing.digests, ("00" * 32, "00" * 32)))


LIES: dict[str, tuple[Lie, str]] = {
    "a mask key that is no number": (of_offers(lambda made: replace(made, mask_key="zz")), "is not a public key"),
    "a mask key of zeros": (of_offers(lambda made: replace(made, mask_key="00" * 32)), "is not a public key"),
    "a mask key in capitals": (of_offers(lambda made: replace(made, mask_key="AB" * 32)), "is not a public key"),
    "more sites than there are": (of_offers(lambda made: replace(made, min_sites=99)), "asks for 99 sites"),
    "an offer that it did not sign": (of_offers(lambda made: made, signed=False), "'east' is not signed by the key"),
    "another threshold": (of_offers(lambda made: announcing(made, threshold=2)), "is not made for its neighbours"),
    "shares that nobody can open": (of_offers(resealed), "The shares of client 3 cannot be opened"),
    "shares other than announced": (of_offers(misannounced), "client 3 are not those that it announced"),
    "a key that is no number": (of_keys("zz" * 32), "lacks its public key"),
    "a key of zeros": (of_keys("00" * 32), "lacks its public key"),
    "a key that it did not sign": (of_keys("09" + "00" * 31, signed=False), "'east' is not signed by the"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_site_that_sends_what_no_other_can_use_is_left_out_of_the_sum_and_named(tmp_path: Path, kind: str) -> None:
    lie, reason = LIES[kind]
    sites = Dishonest(tmp_path, lie)
    outcome = coordinate(plan(), tmp_path / "run", sites, pause=0.001)
    for record in outcome.history:
        assert list(record["quarantined"]) == ["east"] and reason in record["quarantined"]["east"]
        assert record["answered"] == ["north", "south", "west"] and not record["missed"]
    assert not sites.failures


def test_a_wrong_signature_of_a_list_does_not_count_and_does_not_stop_the_others() -> None:
    one = attempt(5)
    one.offers({})
    one.masks({4: "mask"})
    lists = ([0, 1, 2, 3], [4])
    for client in (0, 1, 2):
        one.secrets[client], one.signatures[client] = protocol.confirm(one.secrets[client], *lists, one.signers[client])
    one.signatures[3] = "not a signature"
    assert one.revealed(0, *lists).keys() == {0, 1, 2, 3, 4}


def test_where_wrong_signatures_leave_too_few_the_run_says_whose_they_are(tmp_path: Path) -> None:
    def unsigned(asked: Message, given: Message, signer: NodeSigner) -> Message:
        return replace(given, facts={"signature": "00"}) if asked.facts.get("stage") == "confirm" else given

    sites = Dishonest(tmp_path, unsigned)
    sites.mishaps = {("north", 1): "late"}
    with pytest.raises(UserError, match=r"Too few sites have signed .* as from 'east' is not signed"):
        coordinate(plan(), tmp_path / "run", sites, pause=0.001)


def test_a_site_that_alone_says_it_cannot_use_an_offer_is_missed_and_nobody_else(tmp_path: Path) -> None:
    def accuses(asked: Message, given: Message, signer: NodeSigner) -> Message:
        said: dict[str, Fact] = {"unusable": "[0, 1, 2]", "refused": "I do not like them."}
        return Message(facts=said) if "masked" in given.tensors and "round" in asked.facts else given

    outcome = coordinate(plan(), tmp_path / "run", Dishonest(tmp_path, accuses), pause=0.001)
    for record in outcome.history:
        assert not record["quarantined"] and record["missed"] == {"east": "failed: I do not like them."}


def unfitting(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Shares of a number that is too large to be a secret."""
    coefficients = [2**256 + 5, *(secrets.randbelow(shamir.PRIME) for _ in range(threshold - 1))]
    return {holder: shamir._value(coefficients, holder + 1).to_bytes(33) for holder in holders}


def random(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Shares that give another secret, by whichever holders it is put together."""
    return {holder: secrets.randbelow(shamir.PRIME).to_bytes(33) for holder in holders}


def short(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Shares that are none."""
    return dict.fromkeys(holders, b"")


Dealer = Callable[[bytes, Sequence[int], int], dict[int, bytes]]


@pytest.mark.parametrize("dealer", [unfitting, random, short])
def test_a_site_in_the_sum_whose_shares_belong_to_no_secret_is_named_and_proven_dishonest(
    monkeypatch: pytest.MonkeyPatch, dealer: Dealer
) -> None:
    one = misdealing_attempt(monkeypatch, dealer)
    one.masks({})
    one.reveals({})
    with pytest.raises(TooFew, match="the shares of client 3 do not fit together"):
        one.total()
    assert one.gathering.wrong == {3: "the shares that it dealt belong to no secret"}
    one.gathering.misdealt[3].check("run", "train 1", one.signers[0])


def test_a_site_outside_of_the_sum_whose_shares_belong_to_no_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for dealer, reason in ((unfitting, "belong to no secret"), (random, "do not give its key")):
        one = misdealing_attempt(monkeypatch, dealer)
        one.masks({3: "mask"})
        one.reveals({})
        with pytest.raises(TooFew, match="the shares of client 3 do not"):
            one.total()
        assert reason in one.gathering.wrong[3] and not one.gathering.misdealt


def misdealing_attempt(monkeypatch: pytest.MonkeyPatch, dealer: Dealer) -> Attempt:
    """An attempt of four, after the offers, in which the last one dealt wrong shares."""
    one = attempt(4)
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "split", dealer)
        one.secrets[3], made = protocol.offer(one.gathering.circle(3), one.pairs[3], one.signers[3])
        one.gathering.take(3, made)
    honest = {client: one.words[client] for client in (0, 1, 2)}
    one.words, everybody = honest, one.words
    one.offers({})
    one.words = everybody
    return one


def test_nobody_proves_that_an_honest_site_dealt_wrong_shares() -> None:
    one = attempt(4)
    one.offers({})
    one.masks({})
    one.reveals({})
    made = one.gathering.offers[3]
    shares = {holder: told[3] for holder, told in one.told.items()}
    about = "run", "train 1", one.gathering.attempt, 3, "site-3"
    true = Misdealing(*about, made.mask_key, made.min_sites, made.dealing, made.signature, shares)
    others = {holder: told[0] for holder, told in one.told.items()}
    forged = replace(made.dealing, seed="00" * 32)
    for wrong in (
        true,
        replace(true, shares={0: shares[0], 1: shares[1]}),  # of three that are needed
        replace(true, shares={**shares, 0: shares[1]}),
        replace(true, shares=others),
        replace(true, dealing=forged),
        replace(true, dealing=forged, signature=one.gathering.offers[2].signature),
    ):
        with pytest.raises(PublicError, match=r"dealt wrong shares is not valid|not signed by site-3"):
            wrong.check("run", "train 1", one.signers[0])
    assert Misdealing.from_text(true.to_text()) == true


@pytest.mark.parametrize("dealer", [unfitting, random])
def test_the_others_go_on_without_a_site_that_deals_shares_of_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dealer: Dealer
) -> None:
    split, own = shamir.split, NAMES.index("east")

    def dealt(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
        return (dealer if dealing == [own] else split)(secret, holders, threshold)

    dealing: list[int] = []
    original = protocol._each

    def noted(clients: Sequence[int], use: Callable[[int], None]) -> dict[int, None]:
        dealing[:] = {0, 1, 2, 3} - set(clients)
        return original(clients, use)

    monkeypatch.setattr(protocol, "_each", noted)
    monkeypatch.setattr(protocol, "split", dealt)
    sites = Dishonest(tmp_path, lambda asked, given, signer: given)
    outcome = coordinate(plan(), tmp_path / "run", sites, pause=0.001)
    for record in outcome.history:
        assert record["quarantined"] == {"east": "the shares that it dealt belong to no secret"}
        assert record["answered"] == ["north", "south", "west"]
    assert outcome.history[-1]["round"] == 2 and not sites.failures


def test_a_site_that_tells_no_shares_is_named_where_they_are_needed() -> None:
    one = attempt(3)
    one.offers({})
    one.masks({})
    one.reveals({})
    one.told = {0: {}, 1: {}, 2: one.told[2]}
    with pytest.raises(TooFew):
        one.total()
    assert one.gathering.wrong == {0: "it revealed no share of client 0", 1: "it revealed no share of client 0"}


def test_shares_are_told_even_where_the_next_sum_is_refused(tmp_path: Path) -> None:
    """A site tells shares once: were they lost with the offer for the next round, this round could not be summed."""
    sites = Dishonest(tmp_path, lambda asked, given, signer: given)

    def small(kind: Kind, name: str, message: Message) -> Message | Failure:
        if message.facts.get("stage") == "reveal" and "circle" in message.facts:
            circle = Circle.from_text(str(message.facts["circle"]))
            message = replace(message, facts={**message.facts, "circle": replace(circle, threshold=2).to_text()})
        return Dishonest._answer(sites, kind, name, message)

    sites._answer = small  # type: ignore[method-assign]
    outcome = coordinate(plan(), tmp_path / "run", sites, pause=0.001)
    assert all(record["answered"] == list(NAMES) for record in outcome.history) and not sites.failures
