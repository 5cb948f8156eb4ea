"""A site that takes no part is named with its reason, and is waited for only where it may come."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federate.makers import NAMES, Killed, World, config, exchange_keys, world

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.absences import too_few
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig, SiteConfig

PAUSE = 0.001
ROUNDS = {"rounds": 6}


def events(run: Path) -> list[str]:
    """What an operator is told, in order."""
    return [json.loads(line)["message"] for line in (run / "events.jsonl").read_text().splitlines()]


def entry(run: Path, name: str) -> dict[str, Any]:
    """What sites.json says of a site."""
    sites = json.loads((run / "sites.json").read_text())["sites"]
    return next(site for site in sites if site["name"] == name)


def kill_in_round(sites: World, round: int) -> None:
    """Let the coordinator be killed once, while the sites are asked to train in a round."""
    original, killed = sites._answer, [False]

    def killing(kind: Kind, name: str, message: Message) -> Message | Failure:
        if kind == "train" and message.facts["round"] == round - 1 and not killed[0]:
            killed[0] = True
            raise Killed
        return original(kind, name, message)

    sites._answer = killing  # type: ignore[method-assign]


def in_round(sites: World, round: int, then: Any) -> None:
    """Do something when the sites are asked to train in a round."""
    original = sites._answer

    def doing(kind: Kind, name: str, message: Message) -> Message | Failure:
        if kind == "train" and message.facts["round"] == round - 1:
            then()
        return original(kind, name, message)

    sites._answer = doing  # type: ignore[method-assign]


def stopped_in_round_3(root: Path, secure: bool, **rules: Any) -> tuple[World, FederationConfig]:
    """Four sites, and a run that was killed after two rounds."""
    sites = world(root, (90, 70, 80, 60))
    exchange_keys(sites.folders)
    plan = config(NAMES, rules={"secure": secure, "patience": 2.0, **rules}, training=ROUNDS)
    kill_in_round(sites, 3)
    with pytest.raises(Killed):
        coordinate(plan, root / "run", sites, pause=PAUSE)
    return sites, plan


def refuse_terms(sites: World, name: str, secure: bool) -> bytes:
    """Let a site's owner require what the run's terms lack; site.toml as it was."""
    file = sites.folders[name] / "site.toml"
    before = file.read_bytes()
    stricter = {"min_sites": 99} if secure else {"secure": True}
    replace(SiteConfig.read(file), **stricter).write(file)
    return before


REFUSAL = {False: "The site 'west' cannot take part: Its site.toml says to answer in secure sums only"}
REFUSAL[True] = "The site 'west' cannot take part: Its site.toml says to take part in sums of at least 99 sites"


@pytest.mark.parametrize("secure", [False, True])
def test_a_member_that_refuses_after_a_restart_is_named_so_and_not_waited_for(tmp_path: Path, secure: bool) -> None:
    sites, plan = stopped_in_round_3(tmp_path, secure)
    refuse_terms(sites, "west", secure)
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert not any(event.startswith("Waiting for") for event in events(tmp_path / "run"))
    for record in outcome.history[2:]:
        assert record["answered"] == ["north", "south", "east"]
        assert record["missed"]["west"].startswith(f"refused: {REFUSAL[secure]}")
    assert entry(tmp_path / "run", "west")["refused"].startswith(REFUSAL[secure])
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    about = [note for note in notes if "'west'" in note]
    assert len(about) == 2 and about[0].startswith(REFUSAL[secure]) and about[0].endswith("It was left out.")
    assert about[1] == "The site 'west' missed 4 rounds of 6: 3-6."


@pytest.mark.parametrize("secure", [False, True])
def test_a_refused_member_is_asked_again_in_every_round_and_told_of_once(tmp_path: Path, secure: bool) -> None:
    sites, plan = stopped_in_round_3(tmp_path, secure)
    refusing = ("west",) if secure else ("west", "east")  # a secure sum needs three of four
    lenient = {name: refuse_terms(sites, name, secure) for name in refusing}
    in_round(sites, 5, lambda: (sites.folders["west"] / "site.toml").write_bytes(lenient["west"]))
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert ["west" in record["answered"] for record in outcome.history] == [True, True, False, False, False, True]
    assert entry(tmp_path / "run", "west")["refused"] is None
    assert bool(entry(tmp_path / "run", "east")["refused"]) == (not secure)
    told = [event for event in events(tmp_path / "run") if "cannot take part" in event]
    assert len(told) == len(refusing)


@pytest.mark.parametrize("misfit", ["go_on", "wait"])
def test_a_member_that_had_refused_is_not_waited_for_where_it_is_gone_after_a_restart(
    tmp_path: Path, misfit: str
) -> None:
    sites, plan = stopped_in_round_3(tmp_path, False)
    refuse_terms(sites, "west", False)
    kill_in_round(sites, 5)
    with pytest.raises(Killed):
        coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    sites.away = {"west"}
    plan = replace(plan, rules=replace(plan.rules, misfit=misfit))  # type: ignore[arg-type]
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert any(event.startswith("Waiting for west") for event in events(tmp_path / "run")) == (misfit == "wait")
    assert outcome.history[-1]["answered"] == ["north", "south", "east"]
    assert outcome.history[-1]["missed"]["west"].startswith(f"refused: {REFUSAL[False]}")
    assert entry(tmp_path / "run", "west")["refused"].startswith(REFUSAL[False])


def test_a_member_that_had_refused_takes_part_where_it_is_back_after_a_restart(tmp_path: Path) -> None:
    sites, plan = stopped_in_round_3(tmp_path, False)
    lenient = refuse_terms(sites, "west", False)
    kill_in_round(sites, 5)
    with pytest.raises(Killed):
        coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    (sites.folders["west"] / "site.toml").write_bytes(lenient)
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert outcome.history[-1]["answered"] == list(NAMES)
    assert entry(tmp_path / "run", "west")["refused"] is None


def test_where_too_few_members_are_left_after_a_restart_it_stops_at_once_with_the_reasons(tmp_path: Path) -> None:
    sites, plan = stopped_in_round_3(tmp_path, False, min_sites=3, patience=600.0)
    for name in ("south", "west"):
        refuse_terms(sites, name, False)
    with pytest.raises(
        UserError, match=r"Only 2 of the 3 sites .* can take part\. The site 'south' .* The site 'west'"
    ):
        coordinate(plan, tmp_path / "run", sites, pause=PAUSE)


# Sites that gave no answer when they introduced themselves or were sent the terms

BROKEN = "It cannot import a file that its site.toml lists under 'plugins'; the site's own log says why."


def with_broken_plugin(sites: World, name: str) -> bytes:
    """Let site.toml name a plugin that is no Python; site.toml as it was."""
    folder = sites.folders[name]
    file = folder / "site.toml"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"plugins = []", b'plugins = ["secret_ward_7.py"]'))
    (folder / "secret_ward_7.py").write_text("raise ValueError('row 3')")
    return before


def owned(sites: World) -> Any:
    """Whose key a node has, where that is known."""
    return {node: name for name, node in sites.nodes.items()}.get


def test_a_site_whose_plugin_fails_is_named_with_its_reason_and_without_a_file(tmp_path: Path) -> None:
    sites = world(tmp_path)
    with_broken_plugin(sites, "west")
    plan = config(training={"rounds": 1})
    outcome = coordinate(plan, tmp_path / "run", sites, owned(sites), pause=PAUSE)
    said = f"The site 'west' did not introduce itself: {BROKEN}"
    assert outcome.history[0]["answered"] == ["north", "south"]
    assert events(tmp_path / "run").count(said) == 1
    assert entry(tmp_path / "run", "west")["refused"] == said
    assert f"- {said} It was left out." in (tmp_path / "run" / "report.md").read_text()
    kept = [path for path in (tmp_path / "run").glob("*") if path.suffix in (".json", ".jsonl", ".md")]
    written = "".join(path.read_text() for path in kept)
    assert "secret_ward" not in written and "row 3" not in written


@pytest.mark.parametrize("known", [True, False])
def test_where_too_few_sites_introduce_themselves_the_run_ends_with_their_reasons(tmp_path: Path, known: bool) -> None:
    sites = world(tmp_path)
    for name in ("south", "west"):
        with_broken_plugin(sites, name)
    owner = owned(sites) if known else lambda node: None
    who = ["The site 'south'", "The site 'west'"] if known else [f"The node {sites.nodes[name]}" for name in NAMES[1:3]]
    with pytest.raises(UserError, match="Only 1 of the 2 sites") as few:
        coordinate(config(), tmp_path / "run", sites, owner, pause=PAUSE)
    with_broken_plugin(sites, "north")
    with pytest.raises(UserError, match="Nothing was trained") as none:
        coordinate(config(), tmp_path / "other", sites, owner, pause=PAUSE)
    for ended in (few, none):
        assert all(f"{one} did not introduce itself: {BROKEN}" in str(ended.value) for one in who)
    assert "No site came" not in str(none.value)


def test_a_site_that_fails_to_describe_its_columns_or_to_answer_the_terms_is_named_too(tmp_path: Path) -> None:
    sites = world(tmp_path, (90, 70, 80, 60))
    original, died = sites._answer, Failure("failed", "The site's process died before it answered.")

    def failing(kind: Kind, name: str, message: Message) -> Message | Failure:
        describing = kind == "hello" and name == "west" and "columns" in message.facts
        return died if describing or (kind, name) == ("agree", "east") else original(kind, name, message)

    sites._answer = failing  # type: ignore[method-assign]
    plan = config(NAMES, rules={"min_sites": 3})
    with pytest.raises(UserError, match="Only 2 of the 3 sites") as few:
        coordinate(plan, tmp_path / "run", sites, owned(sites), pause=PAUSE)
    assert f"The site 'west' did not introduce itself: {died.reason}" in str(few.value)
    assert f"The site 'east' did not agree to the terms: {died.reason}" in str(few.value)


def test_a_site_whose_plugin_is_repaired_takes_part_and_is_named_no_more(tmp_path: Path) -> None:
    sites = world(tmp_path)
    before = with_broken_plugin(sites, "west")
    in_round(sites, 2, lambda: (sites.folders["west"] / "site.toml").write_bytes(before))
    outcome = coordinate(config(training={"rounds": 4}), tmp_path / "run", sites, owned(sites), pause=PAUSE)
    assert ["west" in record["answered"] for record in outcome.history] == [False, False, True, True]
    assert entry(tmp_path / "run", "west")["refused"] is None
    assert "did not introduce itself" not in (tmp_path / "run" / "report.md").read_text()


def test_a_member_that_fails_when_it_comes_back_is_missed_with_its_reason(tmp_path: Path) -> None:
    sites = world(tmp_path)
    in_round(sites, 2, lambda: with_broken_plugin(sites, "west"))
    outcome = coordinate(config(training={"rounds": 4}), tmp_path / "run", sites, owned(sites), pause=PAUSE)
    assert outcome.history[1]["missed"]["west"] == f"failed: {BROKEN}"
    assert outcome.history[2]["missed"]["west"] == f"failed: The site 'west' did not introduce itself: {BROKEN}"
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    assert any(note.startswith("The metrics are without the site 'west' (failed: ") for note in notes)


def test_a_site_that_is_gone_after_it_failed_is_only_not_connected(tmp_path: Path) -> None:
    sites = world(tmp_path)
    in_round(sites, 2, lambda: with_broken_plugin(sites, "west"))
    in_round(sites, 4, lambda: sites.away.add("west"))
    outcome = coordinate(config(training={"rounds": 5}), tmp_path / "run", sites, owned(sites), pause=PAUSE)
    assert outcome.history[2]["missed"]["west"].startswith("failed: ")
    assert outcome.history[4]["missed"]["west"] == "lost: The site is not connected."


def test_where_enough_sites_answered_but_cannot_be_summed_the_message_does_not_say_that_they_were_too_few() -> None:
    few, unsummed = too_few(1, 2, 60.0, ["Why."]), too_few(4, 2, 60.0, ["Why."])
    assert str(few).startswith("Only 1 of the 2 sites that a round needs took part within 60 seconds. Why. Every")
    assert str(unsummed).startswith(
        "4 sites took part, but their answers could not be summed within 60 seconds. Why. Every"
    )
