"""A site that deals shares of no secret among more sites than have met it: the others go on without it all the same."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.federate.makers import NAMES, Killed, World, config, exchange_keys, people, site_folder

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.keys import NodeSigner
from ffalm.federate.secure import protocol, secure_site, shamir
from ffalm.federate.secure.protocol import Circle, Offer, Secrets

SITES = (*NAMES, "coast", "hills")
LIAR = "east"
WRONG = "the shares that it dealt belong to no secret"
PLAN = config(SITES, rules={"secure": True, "patience": 0.2}, secure={"neighbours": 2}, training={"rounds": 2})


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Six sites with two neighbours each, of which one deals shares of no secret."""
    honest = protocol.offer

    def random(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
        return {holder: secrets.randbelow(shamir.PRIME).to_bytes(33) for holder in holders}

    def offer(circle: Circle, own: Any, signer: NodeSigner, *least: int) -> tuple[Secrets, Offer]:
        with monkeypatch.context() as patched:
            if signer.name == LIAR:
                patched.setattr(protocol, "split", random)
            return honest(circle, own, signer, *least)

    monkeypatch.setattr(secure_site, "offer", offer)
    rows = enumerate(SITES)
    there = World({name: site_folder(tmp_path / "sites", name, people(40 + seed, seed)) for seed, name in rows})
    exchange_keys(there.folders)
    return there


def ended_well(root: Path, sites: World) -> None:
    history = coordinate(PLAN, root / "run", sites, pause=0.001).history
    assert [record["round"] for record in history] == [1, 2]
    for record in history:
        assert record["quarantined"].get(LIAR) == WRONG
        assert record["answered"] == [name for name in SITES if name != LIAR]


def test_sites_that_were_never_its_neighbours_believe_the_proof_too(tmp_path: Path, sites: World) -> None:
    ended_well(tmp_path, sites)


@pytest.mark.parametrize("question", range(6, 12))
def test_a_coordinator_that_is_killed_between_the_two_sums_goes_on(tmp_path: Path, sites: World, question: int) -> None:
    """Some sites have then revealed the second sum, and the others the first: the proof is kept for all of them."""
    sites.kill = ("after", question)
    with pytest.raises(Killed):
        coordinate(PLAN, tmp_path / "run", sites, pause=0.001)
    sites.kill = None
    ended_well(tmp_path, sites)


def test_sites_without_the_dealers_key_do_not_believe_the_proof_and_name_the_file(tmp_path: Path, sites: World) -> None:
    original = sites._answer

    def losing(kind: Kind, name: str, message: Message) -> Message | Failure:
        if "misdealt" in message.facts:
            (sites.folders[name] / "peers" / f"{LIAR}.pub").unlink(missing_ok=True)
        return original(kind, name, message)

    sites._answer = losing  # type: ignore[method-assign]
    with pytest.raises(UserError) as ended:
        coordinate(PLAN, tmp_path / "run", sites, pause=0.001)
    lacks = f"has no key of '{LIAR}': {LIAR} must send it its node.pub, to be kept as peers/{LIAR}.pub."
    assert all(f"{name}: failed: The site '{name}' {lacks}" in str(ended.value) for name in SITES if name != LIAR)
