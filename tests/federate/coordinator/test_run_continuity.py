"""A run that was stopped goes on with other sites than it began with, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.federate.coordinator.test_federated_run import assert_equal
from tests.federate.makers import NAMES, Killed, Simulated, World, after, config, exchange_keys, world

from ffalm.data.types import Task
from ffalm.engines.remote.message import Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate, owner_in
from ffalm.federate.coordinator.run_continuity import check_may_join, check_unchanged
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.peer_versions import read_versions
from ffalm.system import toml

PAUSE = 0.001
SHORT = {"training": {"rounds": 3}}


def _stopped(tmp_path: Path, sites: World, names: tuple[str, ...], **sections: object) -> None:
    """A run of these sites that is killed after a round."""
    sites.kill = ("before", 4)
    with pytest.raises(Killed):
        coordinate(config(names, **{**SHORT, **sections}), tmp_path / "run", sites, pause=PAUSE)
    sites.kill = None


def test_a_site_that_was_added_takes_part_from_the_next_round_on(tmp_path: Path) -> None:
    sites = world(tmp_path)
    sites.away = {"west"}
    _stopped(tmp_path, sites, NAMES[:2])
    sites.away.clear()
    plan = config(NAMES[:3], **SHORT)
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert [len(record["answered"]) for record in outcome.history] == [2, 3, 3]
    expected = Simulated(plan, sites.folders, tmp_path / "run").rounds({(1, 2)})
    for record, done in zip(outcome.history[1:], expected[1:], strict=True):
        assert record["dual"] == done.record["dual"] and record["weights"] == done.record["weights"]
    assert set(read_versions(tmp_path / "run")) == set(NAMES[:3])
    assert read_versions(sites.folders["west"]).keys() == {"coordinator"}


def test_a_site_that_was_removed_is_missed_by_nobody_and_turned_away(tmp_path: Path) -> None:
    sites = world(tmp_path)
    _stopped(tmp_path, sites, NAMES[:3])
    plan = config(NAMES[:3], removed=["north"], **SHORT)
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert [record["answered"] for record in outcome.history[1:]] == [["south", "west"]] * 2
    assert all(record["missed"] == {} for record in outcome.history[1:])
    assert sites.told["north"] == "The site 'north' was removed from the federation: it is left out."
    expected = Simulated(config(NAMES[:3], **SHORT), sites.folders, tmp_path / "run").rounds({(2, 0), (3, 0)})
    assert_equal(tmp_path / "run", outcome, expected)


def test_sites_in_another_order_and_algorithms_that_keep_numbers_of_clients_are_refused(tmp_path: Path) -> None:
    sites = world(tmp_path)
    sites.away = {"west"}
    _stopped(tmp_path, sites, NAMES[:2], algorithm={"name": "fairfed"})
    for names, words in ((("south", "north"), "'sites' of federation.toml"), (NAMES[:3], "FairFed keeps numbers")):
        plan = config(names, algorithm={"name": "fairfed"}, **SHORT)
        with pytest.raises(UserError, match=words):
            coordinate(plan, tmp_path / "run", sites, pause=PAUSE)


def test_who_may_join_a_run_that_has_begun_follows_from_the_algorithms_state(tmp_path: Path) -> None:
    loans = Task("loans", "loan", "sex", ("no", "yes"), ("f", "m"), 1)
    refused = set()
    for name in ("fedavg", "ffalm", "fpfl", "scaffold", "fedadam", "fairfed", "fcfl", "qffl", "fedfb"):
        try:
            check_may_join(config(algorithm={"name": name}), loans, tmp_path)
        except UserError:
            refused.add(name)
    assert refused == {"fairfed", "fcfl"}
    with pytest.raises(UserError, match="differential privacy"):
        check_may_join(config(algorithm={"name": "fedavg"}, privacy={"noise": 1.0}), loans, tmp_path)


def test_a_run_goes_on_where_the_folder_was_moved_with_its_plugins_and_weights(tmp_path: Path) -> None:
    def plan(folder: str, weights: str = "start.safetensors") -> FederationConfig:
        return config(model={"name": "mlp", "weights": f"{folder}/{weights}"})

    (tmp_path / "config.toml").write_text(toml.dumps({**plan("/before").settings(), "plugins": ["/before/mine.py"]}))
    (tmp_path / "encoding.json").touch()
    check_unchanged(plan("/restored"), tmp_path)
    with pytest.raises(UserError, match=r"The part 'model' of federation.toml has changed"):
        check_unchanged(plan("/restored", "other.safetensors"), tmp_path)


def test_a_run_goes_on_where_sites_tell_of_more_or_smaller_cells_than_before(tmp_path: Path) -> None:
    for before, now in ((10, 4), (4, 20)):
        root = tmp_path / str(now)
        sites = world(root)
        _stopped(root, sites, NAMES[:3], rules={"min_group": before})
        outcome = coordinate(config(rules={"min_group": now}, training={"rounds": 3}), root / "run", sites, pause=PAUSE)
        assert [record["answered"] for record in outcome.history] == [list(NAMES[:3])] * 3
        notes = " ".join(json.loads((root / "run" / "result.json").read_text())["notes"])
        assert "cannot take part" not in notes and "The metrics are without" not in notes


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_may_raise_its_own_min_group_between_two_rounds(tmp_path: Path, secure: bool) -> None:
    sites = world(tmp_path, (300, 300, 300))
    exchange_keys(sites.folders)
    own = sites.folders["north"] / "site.toml"

    def raise_floor() -> None:
        own.write_text(own.read_text().replace("min_group = 0", "min_group = 30"))

    after(3, raise_floor, sites)
    plan = config(rules={"secure": secure}, training={"rounds": 4})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert "min_group = 30" in own.read_text()
    assert not any(record["quarantined"] for record in outcome.history)
    assert sum("north" not in record["answered"] for record in outcome.history) == 1  # until it has agreed again
    assert outcome.history[-1]["answered"] == list(NAMES[:3])
    (north, *_) = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"]
    assert north["withheld"]


@pytest.mark.parametrize(("secure", "kill"), [(False, 7), (True, 14)])
def test_so_it_may_where_the_coordinator_is_killed_before_the_next_round_is_kept(
    tmp_path: Path, secure: bool, kill: int
) -> None:
    """The rows in the run folder are those of before; in a secure run the sums contradicted them for ever."""
    sites = world(tmp_path, (300, 300, 300))
    exchange_keys(sites.folders)
    own = sites.folders["north"] / "site.toml"
    raised = own.read_text().replace("min_group = 0", "min_group = 30")

    def raise_floor() -> None:
        own.write_text(raised)

    after(3, raise_floor, sites)
    plan = config(rules={"secure": secure}, training={"rounds": 4})
    sites.kill = ("before", kill)
    with pytest.raises(Killed):
        coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert ("agree", ("north",)) in sites.asked
    sites.kill = None
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert not any(record["quarantined"] for record in outcome.history)
    assert outcome.history[-1]["answered"] == list(NAMES[:3])


def test_whose_key_a_node_has_is_read_again_where_keys_were_replaced(tmp_path: Path) -> None:
    file = tmp_path / "registered.json"
    owner = owner_in(file)
    assert owner(7) is None
    file.write_text(json.dumps({"north": {"key": "a", "node": 7}, "south": {"key": "b", "node": None}}))
    assert owner(7) == "north" and owner(8) is None
    file.write_text(json.dumps({"north": {"key": "c", "node": 8}}))
    assert owner(7) is None and owner(8) == "north"
    file.write_text("{")
    assert owner(8) is None


def test_control_characters_of_a_site_are_in_nothing_that_an_operator_reads(tmp_path: Path) -> None:
    sites = world(tmp_path)
    original, evil = sites._answer, "\x1b[2J\x1b]0;x\x07"

    def hostile(kind: str, name: str, message: Message) -> object:
        answer = original(kind, name, message)  # type: ignore[arg-type]
        if name != "west" or not isinstance(answer, Message):
            return answer
        if kind == "hello":
            return Message(answer.tensors, {**answer.facts, "version": f"1{evil}"})
        return Message(answer.tensors, {**answer.facts, "misfit": evil}) if kind == "agree" else answer

    sites._answer = hostile  # type: ignore[method-assign,assignment]
    coordinate(config(training={"rounds": 1}), tmp_path / "run", sites, pause=PAUSE)
    texts = [path.read_text() for path in (tmp_path / "run").glob("*") if path.suffix in (".json", ".jsonl", ".md")]
    assert any("?[2J" in text for text in texts)
    assert not any("\x1b" in text or "\\u001b" in text for text in texts)
