"""A coordinator that wants two sums of a round that differ by one site: the difference would be that one's answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federate.makers import NAMES, World, config, exchange_keys, people, site_folder
from tests.federate.secure.parties import attempt, uniform
from tests.federate.secure.test_active_coordinator import Lying, forgotten, keyed, led, plan

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.federate.keys import NodeSigner
from ffalm.federate.secure import aggregator
from ffalm.federate.secure.crypto import KeyPair
from ffalm.federate.secure.fixed_point import added
from ffalm.federate.secure.protocol import Circle, apply, introduced, mask, own_mask

MANY = (*NAMES, "coast", "hills")
SPARSE = config(MANY, rules={"secure": True, "patience": 0.0}, secure={"neighbours": 2}, training={"rounds": 1})


class WithoutOffers(Lying):
    """Sites of which one makes no offer."""

    silent = "north"

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        if name == self.silent and message.facts.get("stage") == "offer":
            return Failure("failed", "It makes no offer.")
        return super()._answer(kind, name, message)


def many(root: Path) -> dict[str, Path]:
    """Six sites, of which each has two neighbours in a sum."""
    folders = {name: site_folder(root / "sites", name, people(40, seed)) for seed, name in enumerate(MANY)}
    exchange_keys(folders)
    return folders


def test_a_site_that_made_no_offer_cannot_pass_for_one_of_a_sum(tmp_path: Path) -> None:
    """Over {north, south, west}, then over {south, west} alone under a list that has north in it."""
    folders = keyed(tmp_path)
    assert led(tmp_path, World(folders), plan(min_sites=2)) == ""
    forgotten(tmp_path / "run")

    def padded(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move in ("confirm", "reveal"):
            lists = json.loads(facts["lists"])
            facts["lists"] = json.dumps({**lists, "summed": [0, 1, 2], "dropped": []})
        return facts

    sites = WithoutOffers(folders, padded)
    assert led(tmp_path, sites, plan(min_sites=2)) != ""
    assert all("cannot be true" in sites.refusals[name] for name in ("south", "west"))


def test_a_coordinator_cannot_choose_circles_that_are_joined_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two circles of three are two sums; with other circles in a second attempt, under the same list of all six, the
    sums of the circles would differ by single sites."""

    def chosen(*given: Any) -> dict[int, tuple[int, ...]]:
        clients = sorted(given[-2])
        halves = [set(clients[:3]), set(clients[3:])]
        return {client: tuple(sorted(half - {client})) for half in halves for client in half}

    monkeypatch.setattr(aggregator, "ring", chosen)
    sites = Lying(many(tmp_path), lambda name, move, facts: facts)
    assert led(tmp_path, sites, SPARSE) != ""
    assert len(sites.refusals) >= 4  # a site between two of its half has these as neighbours by the agreed order too
    assert all("hides less than was agreed" in refusal for refusal in sites.refusals.values())


def test_among_many_sites_each_works_out_the_same_circles_as_the_coordinator(tmp_path: Path) -> None:
    assert led(tmp_path, World(many(tmp_path)), SPARSE) == ""


def test_a_colluding_site_cannot_show_itself_under_the_number_of_a_site_that_another_never_met(tmp_path: Path) -> None:
    """The other would then believe a proof of wrong dealing that the colluding site made under that number, and help
    to reveal a second sum of the round, without the honest site whose number it is."""
    folders, shown = many(tmp_path), list[int]()

    def instead(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move == "offer" and name == "north":
            circle = Circle.from_text(facts["circle"])
            victim = next(client for client in circle.peers if MANY[client] != "hills")
            forged = introduced(circle.run, victim, KeyPair.new(), NodeSigner(folders["hills"], "hills"))
            kept = {client: key for client, key in circle.peers.items() if key[0] != "hills"}
            facts["circle"] = replace(circle, peers=kept | {victim: ("hills", *forged)}).to_text()
            shown.append(victim)
        return facts

    sites = Lying(folders, instead)
    led(tmp_path, sites, SPARSE)
    assert shown and "lists other sites, or other numbers of them, than was agreed" in sites.refusals["north"]


def test_masks_of_sites_that_were_told_of_different_sites_do_not_cancel() -> None:
    one = attempt(3)
    one.offers({})
    passed = {client: one.accepted(client, one.gathering.passed(client)) for client in range(3)}
    other = replace(passed[2], circle=replace(passed[2].circle, everyone=(0, 1, 2, 3)))

    def stripped(*kept: Any) -> Any:
        total = one.plan.empty()
        for client, secrets in enumerate(kept):
            total = added(total, mask(secrets, one.words[client], "question"))
            apply(total, own_mask(secrets.seed, one.gathering.attempt), add=False)
        return total["32"]

    plain = one.words[0]["32"] + one.words[1]["32"] + one.words[2]["32"]
    assert (stripped(passed[0], passed[1], passed[2]) == plain).all()
    assert uniform(stripped(passed[0], passed[1], other) - plain)
