"""A coordinator that does not follow the protocol: what it asks of sites that do, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.federate.makers import NAMES, Killed, World, config, exchange_keys, world
from tests.federate.secure.parties import Attempt, PlainSigner, attempt

from ffalm.config import entry_of
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import PublicError, UserError
from ffalm.federate.answer_ledger import AnswerLedger
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.keys import NodeSigner, write_key_pair
from ffalm.federate.secure import secure_clients, secure_site
from ffalm.federate.secure.crypto import KeyPair
from ffalm.federate.secure.first_asked import FILE
from ffalm.federate.secure.payload import round_numbers, round_sum
from ffalm.federate.secure.protocol import Circle, confirm, introduced, offer
from ffalm.federate.secure.secure_settings import Secure
from ffalm.federate.site.answering import answer
from ffalm.federate.terms import SiteTerms

Change = Callable[[str, str, dict[str, Any]], dict[str, Any]]
"""Given a site, the move and the facts that it is asked with, other facts."""


class Lying(World):
    """A federation whose coordinator asks other questions than the protocol says; `refusals` is what sites answer."""

    def __init__(self, folders: dict[str, Path], change: Change) -> None:
        super().__init__(folders)
        self._change, self.refusals = change, dict[str, str]()
        self.asked_with: list[tuple[str, str, Message]] = []

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        move = str(message.facts.get("stage", kind))
        message = replace(message, facts=self._change(name, move, dict(message.facts)))
        self.asked_with.append((name, move, message))
        found = super()._answer(kind, name, message)
        if isinstance(found, Failure):
            self.refusals[name] = found.reason
        elif "refused" in found.facts:
            self.refusals[name] = str(found.facts["refused"])
        return found


def plan(sites: int = 3, **rules: Any) -> FederationConfig:
    return config(NAMES[:sites], rules={"secure": True, "patience": 0.0, **rules}, training={"rounds": 1})


def keyed(root: Path, sites: int = 3) -> dict[str, Path]:
    folders = world(root, (50, 40, 45, 40)[:sites]).folders
    exchange_keys(folders)
    return folders


def led(root: Path, sites: World, asked: FederationConfig | None = None) -> str:
    """Why the run stopped; empty where it did not."""
    try:
        coordinate(asked or plan(), root / "run", sites, pause=0.001)
    except UserError as error:
        return str(error)
    return ""


def honest(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
    return facts


# Keys


def test_a_public_key_of_the_coordinators_own_is_refused(tmp_path: Path) -> None:
    mine = KeyPair.new()
    write_key_pair(tmp_path, "coordinator")

    def swapped(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move == "offer" and name == "north":
            circle = Circle.from_text(facts["circle"])
            forged = introduced(circle.run, 1, mine, NodeSigner(tmp_path, "south"))
            facts["circle"] = replace(circle, peers={**circle.peers, 1: ("south", *forged)}).to_text()
        return facts

    sites = Lying(keyed(tmp_path), swapped)
    led(tmp_path, sites)
    assert "from 'south' is not signed by the key of south" in sites.refusals["north"]


def test_a_mask_key_of_the_coordinators_own_is_refused(tmp_path: Path) -> None:
    def swapped(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move == "train" and name == "north":
            question = json.loads(facts["secure"])
            question["passed"]["1"][0] = KeyPair.new().public.hex()
            facts["secure"] = json.dumps(question)
        return facts

    sites = Lying(keyed(tmp_path), swapped)
    led(tmp_path, sites)
    assert "from 'south' is not signed by the key of south" in sites.refusals["north"]


def test_a_site_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    folders = keyed(tmp_path)
    (folders["north"] / "peers" / "west.pub").unlink()
    sites = Lying(folders, honest)
    led(tmp_path, sites)
    assert sites.refusals["north"].startswith("The site 'north' has no key of 'west': west must send it its node.pub")
    assert str(tmp_path) not in sites.refusals["north"]


def test_a_key_signed_for_another_run_or_client_is_refused() -> None:
    one = attempt(3)
    circle = one.gathering.circle(0)
    for changed in (replace(circle, run="another"), replace(circle, peers={2: circle.peers[1], 1: circle.peers[2]})):
        with pytest.raises(UserError, match="not signed by"):
            offer(changed, one.pairs[0], one.signers[0])
    with pytest.raises(UserError, match="cannot be true"):
        offer(replace(circle, peers={1: circle.peers[1], 2: circle.peers[1]}), one.pairs[0], one.signers[0])


@pytest.mark.parametrize("name", ["../elsewhere/node", "/node", "..", "", "a b", "north\n"])
def test_a_site_whose_name_leads_out_of_the_folder_of_keys_is_refused(tmp_path: Path, name: str) -> None:
    """A public key elsewhere on the site's machine, whose private half the coordinator has, vouches for nobody."""
    folders = {place: tmp_path / place for place in ("site", "site/peers", "site/elsewhere")}
    for folder in folders.values():
        folder.mkdir()
    write_key_pair(folders["site/elsewhere"], "coordinator")
    statement, forger = "a statement", NodeSigner(folders["site/elsewhere"], name)
    with pytest.raises(PublicError, match="only letters, digits"):
        NodeSigner(folders["site"], "north").check(name, statement, forger.sign(statement))


# One answer, one mask, one sum


def test_the_same_round_over_fewer_sites_is_not_revealed(tmp_path: Path) -> None:
    """Asking {north, south, west} and then {south, west} would give north's update."""
    folders = keyed(tmp_path)
    assert led(tmp_path, World(folders), plan(min_sites=2)) == ""
    result, checkpoint = tmp_path / "run" / "result.json", tmp_path / "run" / "checkpoint"
    result.unlink()
    for path in sorted(checkpoint.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    sites = Lying(folders, honest)
    sites.away = {"north"}
    assert "Only" in led(tmp_path, sites, plan(min_sites=2))
    assert all("over other sites" in sites.refusals[name] for name in ("south", "west"))
    assert not result.exists()
    sites.away = set()
    assert led(tmp_path, sites, plan(min_sites=2)) == ""


def forgotten(run: Path) -> None:
    """What a coordinator deletes that wants to ask its last questions again, not word for word."""
    (run / "result.json").unlink()
    (run / FILE).unlink(missing_ok=True)
    shutil.rmtree(run / "checkpoint")


def asked_again(root: Path, asked: FederationConfig, change: Change = honest) -> Lying:
    """Sites that trained with a coordinator and are asked the same again, but for a change."""
    folders = keyed(root)
    assert led(root, World(folders)) == ""
    forgotten(root / "run")
    sites = Lying(folders, change)
    assert led(root, sites, asked) != ""
    return sites


def test_the_same_round_with_another_largest_weight_is_not_answered(tmp_path: Path) -> None:
    """With rows of 35, 28 and 31, sums under the largest weights 35 and 31 differ by 4 times north's update."""
    sites = asked_again(tmp_path, plan(max_share=0.34))
    assert len(sites.refusals) == 3 and all("the question 'train 1'" in why for why in sites.refusals.values())


def test_the_same_round_with_another_min_group_is_not_answered(tmp_path: Path) -> None:
    """The difference would be the Tally of the cells that are told under one of the two alone."""
    sites = asked_again(tmp_path, plan(min_group=2))
    told = (
        "This site has answered the question 'train 1' of this run under min_group = 0, and is asked it again under "
        "min_group = 2: put 0 back under [rules] of federation.toml, or in this site's site.toml if it was changed "
        "there, until this question is answered."
    )
    assert sites.refusals == dict.fromkeys(sites.folders, told)


def test_a_site_whose_own_min_group_has_changed_names_both_until_the_next_question(tmp_path: Path) -> None:
    """Between two attempts at a round the site reports its rows again, but answers this round under the first alone."""
    folders, asked = keyed(tmp_path, 4), plan(min_sites=2)
    asked = replace(asked, sites=tuple(folders), training=replace(asked.training, rounds=2))
    sites = World(folders)
    sites.kill = ("after", 5)  # the masked answers to round 1
    with pytest.raises(Killed):
        coordinate(asked, tmp_path / "run", sites, pause=0.001)
    assert sites.asked[5][0] == "train"
    sites.kill = None
    own = folders["north"] / "site.toml"
    own.write_text(own.read_text().replace("min_group = 0", "min_group = 7"))
    assert led(tmp_path, sites, asked) == ""
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert "of this run under min_group = 0, and is asked it again under min_group = 7" in history[0]["missed"]["north"]
    assert history[1]["answered"] == list(folders)


def test_another_model_is_refused_as_such_under_another_min_group_too(tmp_path: Path) -> None:
    """What is to be put back is then more than min_group."""
    ledger = AnswerLedger(tmp_path, SimpleNamespace(run="a run", run_key="terms"))  # type: ignore[arg-type]
    ledger.question("score", {"model": {"weight": torch.zeros(1)}}, under={"min_group": 0})
    with pytest.raises(PublicError, match="for another model or other terms"):
        ledger.question("score", {"model": {"weight": torch.ones(1)}}, under={"min_group": 2})


def test_a_round_is_asked_again_with_the_weights_that_it_was_asked_with_first(tmp_path: Path) -> None:
    """A rule that was changed, or a larger site that has come, counts from the next round on."""
    folders = keyed(tmp_path)
    sites = World(folders)
    sites.kill = ("after", 5)  # the masked answers to round 1
    with pytest.raises(Killed):
        coordinate(plan(), tmp_path / "run", sites, pause=0.001)
    assert sites.asked[5][0] == "train"
    sites.kill = None
    assert led(tmp_path, sites, plan(max_share=0.34)) == ""


def test_what_a_site_keeps_from_its_last_round_is_not_left_out_when_a_round_is_asked_again(tmp_path: Path) -> None:
    """Of two sums with and without north's control variate the difference is made of that vector alone."""
    folders = keyed(tmp_path)
    asked = replace(plan(), training=replace(plan().training, rounds=2), contender=entry_of("scaffold", {}))
    assert led(tmp_path, World(folders), asked) == ""
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "000002")

    def forgetful(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {**facts, "counted": 0} if (name, move) == ("north", "train") else facts

    sites = Lying(folders, forgetful)
    led(tmp_path, sites, asked)
    assert "the question 'train 2'" in sites.refusals["north"]


def test_two_questions_at_once_never_get_the_same_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = keyed(tmp_path)
    sites = Lying(folders, honest)
    original, second = round_numbers, list[str]()

    def meanwhile(*arguments: Any) -> Any:
        name, move, message = sites.asked_with[-1]
        assert move == "train"
        with pytest.raises(UserError) as refused:
            answer("train", message, {"site": str(folders[name])})
        second.append(str(refused.value))
        return original(*arguments)

    monkeypatch.setattr(secure_site, "round_numbers", meanwhile)
    assert led(tmp_path, sites) == ""
    assert len(second) == 3 and all("a mask hides one answer only" in why for why in second)


def test_masks_made_for_one_question_are_used_for_no_other(tmp_path: Path) -> None:
    def renamed(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move == "offer":
            facts["circle"] = replace(Circle.from_text(facts["circle"]), purpose="score").to_text()
        return facts

    sites = Lying(keyed(tmp_path), renamed)
    led(tmp_path, sites)
    assert set(sites.refusals) == set(NAMES[:3])


# The same question for everybody


class Uneven(World):
    """A coordinator that asks south and west something on which they hardly move: the sum would be north's update."""

    def __init__(self, folders: dict[str, Path], change: Callable[[Message], Message]) -> None:
        super().__init__(folders)
        self._change, self._keys, self._north = change, dict[str, str](), ""

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        asked = message if name == "north" else self._change(message)
        if kind == "agree" and "terms" in asked.facts:
            self._keys[name] = SiteTerms.from_text(str(asked.facts["terms"])).key
        elif "terms" in asked.facts:
            asked = replace(asked, facts={**asked.facts, "terms": self._keys[name]})
        found = super()._answer(kind, name, asked)
        if isinstance(found, Message) and "question" in found.facts:  # it does not mind what it is told of that
            self._north = str(found.facts["question"]) if name == "north" else self._north
            return replace(found, facts={**found.facts, "question": self._north})
        return found


def less_weight(message: Message) -> Message:
    if "secure" not in message.facts:
        return message
    question = {**json.loads(str(message.facts["secure"])), "largest": 2**40}
    return replace(message, facts={**message.facts, "secure": json.dumps(question)})


def dead_model(message: Message) -> Message:
    if "model" not in message.tensors:
        return message
    model = {name: torch.full_like(value, -100.0) for name, value in message.tensors["model"].items()}
    return replace(message, tensors={**message.tensors, "model": model})


def other_terms(message: Message) -> Message:
    if not str(message.facts.get("terms", "")).startswith("{"):
        return message
    terms = SiteTerms.from_text(str(message.facts["terms"]))
    slow = replace(terms, training=replace(terms.training, lr=1e-12))
    return replace(message, facts={**message.facts, "terms": slow.to_text()})


@pytest.mark.parametrize("change", [less_weight, dead_model, other_terms])
def test_a_site_that_is_asked_something_else_than_the_others_is_not_alone_in_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Message], Message]
) -> None:
    own, sums = list[Any](), list[Any]()

    def known(*arguments: Any) -> Any:
        own.append(round_numbers(*arguments))
        return own[-1]

    def seen(layout: Any, values: Any, *others: Any) -> Any:
        sums.append(values)
        return round_sum(layout, values, *others)

    monkeypatch.setattr(secure_site, "round_numbers", known)
    monkeypatch.setattr(secure_clients, "round_sum", seen)
    why = led(tmp_path, Uneven(keyed(tmp_path), change))
    assert "add up to other training rows" in why
    first = next(name for name in own[0] if name.startswith("model's"))
    assert float(abs(sums[0][first] - own[0][first]).max()) > 1  # of an update below 0.2; it was 1e-8


def test_masks_of_sites_that_were_asked_different_questions_do_not_cancel() -> None:
    same, other = attempt(3), attempt(3)
    other.asked[0] = "another question"
    assert same.plan.values(same.run({}))["counts"].max() <= 300
    assert abs(other.plan.values(other.run({}))["counts"]).max() > 2**32


def test_how_large_a_sites_numbers_are_does_not_follow_from_asking_under_ever_other_ranges(tmp_path: Path) -> None:
    """Whose numbers leave a range is told: halving one again and again told each site's loss to any digit."""
    sites, said = World(keyed(tmp_path)), list[str]()
    for bound in (0.02, 0.01, 0.03, 0.04, 0.01):
        asked = replace(plan(), masking=Secure(loss_range=bound))
        said.append(led(tmp_path, sites, asked))
    beyond = ["north: its loss is beyond the agreed loss_range" in why for why in said]
    assert beyond == [True, True, True, False, True]
    assert "under 3 choices of [secure] in federation.toml, and another would reveal" in said[3]


# Circles


def test_a_site_that_goes_by_the_number_of_another_is_refused(tmp_path: Path) -> None:
    """Two sums over the clients 0, 1 and 3 would be over north, south and east, and then over west, south and east:
    their difference tells what north answered to whoever knows what west did."""
    folders = keyed(tmp_path)
    coordinate(plan(), tmp_path / "run", World(folders), pause=0.001)
    terms = SiteTerms.from_text((folders["south"] / "agreed.json").read_text())

    def asked(stage: str, **facts: str) -> Message:
        return answer(
            "secure", Message(facts={"stage": stage, "terms": terms.key, **facts}), {"site": str(folders["south"])}
        )

    def circle(**numbers: int) -> str:
        signers = {name: NodeSigner(folders[name], name) for name in numbers}
        keys = {
            numbers[name]: (name, *introduced(terms.run, numbers[name], KeyPair.new(), signers[name]))
            for name in numbers
        }
        return Circle(terms.run, "train 1", "an attempt", 1, (1, *keys), keys, 2).to_text()

    asked("key")
    assert "offer" in asked("offer", circle=circle(north=0, west=2)).facts
    with pytest.raises(UserError, match="lists other sites, or other numbers of them, than was agreed"):
        asked("offer", circle=circle(west=0, north=2))
    swapped = replace(terms, sites=("west", "south", "north"))
    answer("agree", Message(facts={"terms": swapped.to_text()}), {"site": str(folders["south"])})
    terms = swapped
    with pytest.raises(UserError, match="other sites under the numbers that some had before"):
        asked("offer", circle=circle(west=0, north=2))


def test_circles_that_hide_less_than_agreed_or_are_of_another_run_are_refused(tmp_path: Path) -> None:
    changes: dict[str, tuple[Callable[[Circle], Circle], str]] = {
        "north": (lambda circle: replace(circle, threshold=2), "hides less than was agreed"),
        "south": (lambda one: replace(one, peers={0: one.peers[0]}, threshold=2), "hides less than was agreed"),
        "west": (lambda circle: replace(circle, client=3), "another run or site"),
        "east": (lambda circle: replace(circle, run="another"), "another run or site"),
    }

    def changed(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move == "offer":
            facts["circle"] = changes[name][0](Circle.from_text(facts["circle"])).to_text()
        return facts

    sites = Lying(keyed(tmp_path, 4), changed)
    led(tmp_path, sites, plan(4))
    assert all(why in sites.refusals[name] for name, (_, why) in changes.items())


def test_a_site_takes_part_in_no_smaller_sum_than_its_own_file_allows(tmp_path: Path) -> None:
    folders = keyed(tmp_path)
    file = folders["south"] / "site.toml"
    file.write_text(file.read_text().replace("min_sites = 2", "min_sites = 3"))
    sites = Lying(folders, honest)
    sites.away = {"north"}
    led(tmp_path, sites)
    assert sites.refusals["south"] == ("Its site.toml says to take part in sums of at least 3 sites; this one is of 2.")


def insisting(root: Path, min_sites: int, sites: int = 3) -> dict[str, Path]:
    """Sites whose own files all ask for so many in a sum."""
    folders = keyed(root, sites)
    for folder in folders.values():
        file = folder / "site.toml"
        file.write_text(file.read_text().replace("min_sites = 2", f"min_sites = {min_sites}"))
    return folders


def test_a_site_that_is_listed_twice_counts_once_and_the_sum_of_two_is_not_revealed(tmp_path: Path) -> None:
    """North is dropped after its offer, and the list is padded to the three sites that all files ask for."""

    def padded(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if move in ("confirm", "reveal"):
            lists = json.loads(facts["lists"])
            facts["lists"] = json.dumps({**lists, "summed": [*lists["summed"], lists["summed"][-1]]})
        return facts

    sites = Lying(insisting(tmp_path, 3), padded)
    sites.mishaps = {("north", 1): "late"}
    why = led(tmp_path, sites)
    too_small = "Its site.toml says to take part in sums of at least 3 sites; this one is of 2."
    assert sites.refusals["south"] == sites.refusals["west"] == too_small
    assert f"south: failed: {too_small}" in why


def test_sites_that_the_coordinator_made_up_do_not_count_as_sites_of_a_sum(tmp_path: Path) -> None:
    """Nobody signed for the numbers 3 to 11, and under privacy each site would give its share of the noise of ten."""
    invented = list(range(3, 12))

    def enlarged(name: str, move: str, facts: dict[str, Any]) -> dict[str, Any]:
        if "circle" in facts:
            circle = Circle.from_text(facts["circle"])
            facts["circle"] = replace(circle, everyone=(*circle.everyone, *invented)).to_text()
        if move in ("confirm", "reveal"):
            lists = json.loads(facts["lists"])
            facts["lists"] = json.dumps({**lists, "summed": [*lists["summed"], *invented]})
        return facts

    sites = Lying(insisting(tmp_path, 10), enlarged)
    rules = {"secure": True, "patience": 0.0}
    few = led(tmp_path, sites, config(NAMES[:3], rules=rules, training={"rounds": 1}, secure={"neighbours": 2}))
    assert "it can only count its neighbours and itself: set neighbours in [secure] of federation.toml to 10" in few
    led(tmp_path, sites)
    assert all("lists other sites" in sites.refusals[name] for name in NAMES[:3])
    assert not any(move == "train" for _, move, _ in sites.asked_with)


# Lists of drop-outs


def dropped_out() -> Attempt:
    """Five sites, of which the last dropped out after its offer."""
    one = attempt(5)
    one.offers({})
    one.masks({4: "mask"})
    return one


def test_a_site_signs_one_list_of_drop_outs_an_attempt() -> None:
    one = dropped_out()
    kept, _ = confirm(one.secrets[0], [0, 1, 2, 3], [4], one.signers[0])
    confirm(kept, [3, 2, 1, 0], [4], one.signers[0])
    with pytest.raises(UserError, match="cannot be true"):
        confirm(kept, [0, 1, 2, 4], [3], one.signers[0])
    one.secrets[0] = kept
    with pytest.raises(UserError, match="cannot be true"):
        one.revealed(0, [0, 1, 2, 3, 4], [])


def test_drop_outs_that_too_few_have_signed_are_not_revealed() -> None:
    one = dropped_out()
    lists = ([0, 1, 2, 3], [4])
    with pytest.raises(UserError, match="Too few sites have signed"):
        one.revealed(0, *lists)
    for client in (0, 1):
        one.secrets[client], one.signatures[client] = confirm(one.secrets[client], *lists, one.signers[client])
    with pytest.raises(UserError, match="Too few sites have signed"):
        one.revealed(0, *lists)
    one.signatures[2] = PlainSigner("coordinator").sign("anything")
    with pytest.raises(UserError, match="not signed by site-2"):
        one.revealed(0, *lists)
    one.secrets[2], one.signatures[2] = confirm(one.secrets[2], *lists, one.signers[2])
    assert one.revealed(0, *lists).keys() == {0, 1, 2, 3, 4}
