"""Who is let in, who is left out and told why, and for whom the federation waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federate.makers import NAMES, World, after, config, people, site_folder, world

import ffalm
from ffalm.engines.remote.message import Failure, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.members import Members
from ffalm.federate.federation_config import SiteConfig

TEXT_AGE = "The site 'west' has the column 'age' as text, the others as numbers."


def misfit_world(root: Path) -> World:
    """Three sites, of which one writes its ages in words."""
    sites = world(root, (90, 70))
    odd = people(80, 2)
    odd["age"] = odd["age"].map(lambda age: f"{age // 10} decades")
    return World({**sites.folders, "west": site_folder(root / "sites", "west", odd)})


def test_the_federation_goes_on_without_a_misfit_tells_it_and_records_it(tmp_path: Path) -> None:
    sites = misfit_world(tmp_path)
    outcome = coordinate(config(training={"rounds": 2}), tmp_path / "run", sites, pause=0.001)
    assert [record["answered"] for record in outcome.history] == [["north", "south"]] * 2
    assert sites.told == {"west": TEXT_AGE}
    entry = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"][2]
    assert entry["refused"] == TEXT_AGE and entry["rows"] is None
    assert f"- {TEXT_AGE} It was left out." in (tmp_path / "run" / "report.md").read_text()
    assert not any("west" in names for kind, names in sites.asked if kind in ("train", "score"))


def test_a_file_that_its_site_cannot_read_is_a_misfit_told_without_its_name(tmp_path: Path) -> None:
    sites = world(tmp_path, (90, 70))
    empty = site_folder(tmp_path / "sites", "west", None)
    outcome = coordinate(
        config(training={"rounds": 1}), tmp_path / "run", World({**sites.folders, "west": empty}), pause=0.001
    )
    assert outcome.history[0]["answered"] == ["north", "south"]
    entry = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"][2]
    assert entry["refused"] == "The site 'west' cannot take part: Its data file does not exist."


def test_a_federation_that_waits_asks_again_until_the_file_is_fixed(tmp_path: Path) -> None:
    sites = misfit_world(tmp_path)
    after(3, lambda: people(80, 2).to_csv(sites.folders["west"] / "rows.csv", index=False), sites)
    plan = config(rules={"misfit": "wait", "patience": 30.0}, training={"rounds": 1})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert outcome.history[0]["answered"] == ["north", "south", "west"]
    assert [names for kind, names in sites.asked if kind == "hello"].count(
        ("west",)
    ) == 4  # names first, then statistics


def test_a_federation_that_waits_stops_when_patience_is_over(tmp_path: Path) -> None:
    plan = config(rules={"misfit": "wait"})
    with pytest.raises(UserError, match=r"'age' as text.* patience is over"):
        coordinate(plan, tmp_path / "run", misfit_world(tmp_path), pause=0.001)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"


def test_if_too_few_sites_accept_the_terms_it_stops_at_once_with_their_reasons(tmp_path: Path) -> None:
    sites = world(tmp_path)
    for name in ("south", "west"):
        plain = SiteConfig.read(sites.folders[name] / "site.toml")
        replace(plain, secure=True).write(sites.folders[name] / "site.toml")
    needs = r"Only 1 of the 2 sites that a round needs can take part\. The site 'south' .*secure.* The site 'west' "
    with pytest.raises(UserError, match=needs):
        coordinate(config(rules={"patience": 600.0}), tmp_path / "run", sites, pause=0.001)
    outcome = coordinate(config(rules={"min_sites": 1}, training={"rounds": 1}), tmp_path / "other", sites, pause=0.001)
    assert outcome.history[0]["answered"] == ["north"]


EACH = ("age", "hours", "job")
LISTED = [
    ({"groups": ["a", "b"]}, "The site {!r} has the group 'female', 'male'; the federation knows 'a', 'b'."),
    (
        {"label_values": ["good", "bad"], "favourable": "good"},
        "The site {!r} has the label 'no', 'yes'; the federation knows 'bad', 'good'.",
    ),
]


@pytest.mark.parametrize(("data", "difference"), LISTED, ids=["groups", "labels"])
def test_where_no_site_has_what_federation_toml_lists_it_stops_at_once_with_each_difference(
    tmp_path: Path, data: dict[str, Any], difference: str
) -> None:
    plan = config(rules={"patience": 600.0}, data=data)
    each = " ".join(difference.format(name) for name in NAMES[:3])
    with pytest.raises(UserError) as ended:
        coordinate(plan, tmp_path / "run", world(tmp_path), pause=0.001)
    assert str(ended.value) == f"{each} Nothing was trained; fix that and run again."


def test_where_each_site_lacks_a_column_of_most_it_stops_at_once_with_each_column(tmp_path: Path) -> None:
    frames = {name: people(80, 1).drop(columns=column) for name, column in zip(NAMES, EACH, strict=False)}
    folders = {name: site_folder(tmp_path, name, frame) for name, frame in frames.items()}
    lacks = r"'north' lacks the column 'age'.* 'south' lacks the column 'hours'.* 'west' lacks the column 'job'"
    with pytest.raises(UserError, match=lacks):
        coordinate(config(rules={"patience": 600.0}), tmp_path / "run", World(folders), pause=0.001)


def test_where_no_column_is_common_it_stops_at_once_with_each_sites_columns(tmp_path: Path) -> None:
    frames = {name: people(80, 1)[["sex", "loan", own]] for name, own in zip(NAMES, EACH, strict=False)}
    folders = {name: site_folder(tmp_path, name, frame) for name, frame in frames.items()}
    plan = config(rules={"patience": 600.0}, data={"use_group_as_feature": False})
    each = r"common\. The site 'north' has 'age'\. The site 'south' has 'hours'\. The site 'west' has 'job'\. Nothing"
    with pytest.raises(UserError, match=each):
        coordinate(plan, tmp_path / "run", World(folders), pause=0.001)


def test_where_no_site_can_read_its_file_each_is_named_in_the_order_of_the_sites(tmp_path: Path) -> None:
    folders = {name: site_folder(tmp_path, name, None) for name in NAMES[:3]}
    each = " ".join(f"The site {name!r} cannot take part: Its data file does not exist." for name in NAMES[:3])
    with pytest.raises(UserError) as ended:
        coordinate(config(rules={"patience": 600.0}), tmp_path / "run", World(folders), pause=0.001)
    assert str(ended.value) == f"{each} Nothing was trained; fix that and run again."


@pytest.mark.parametrize("problem", ["each lacks a column", "all have one label"])
def test_a_federation_that_waits_asks_all_again_where_none_fits(tmp_path: Path, problem: str) -> None:
    """That all have one label is no single site's misfit."""
    sites = world(tmp_path)
    good = {name: pd.read_csv(folder / "rows.csv") for name, folder in sites.folders.items()}

    def write(frames: dict[str, pd.DataFrame]) -> None:
        for name, frame in frames.items():
            frame.to_csv(sites.folders[name] / "rows.csv", index=False)

    if problem == "all have one label":
        write({name: frame.assign(loan="yes") for name, frame in good.items()})
    else:
        write({name: good[name].drop(columns=column) for name, column in zip(good, EACH, strict=True)})

    after(4, lambda: write(good), sites)
    plan = config(rules={"misfit": "wait", "patience": 5.0}, training={"rounds": 1})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert outcome.history[0]["answered"] == ["north", "south", "west"]


NO_CAUSE = "The sites could not agree, or too few can take part; the coordinator names no cause at this site."


def test_where_nobodys_data_fits_each_site_is_told_its_own_difference_alone(tmp_path: Path) -> None:
    sites = world(tmp_path)
    with pytest.raises(UserError):
        coordinate(config(data=LISTED[0][0]), tmp_path / "run", sites, pause=0.001)
    assert sites.ended == {name: LISTED[0][1].format(name) for name in NAMES[:3]}


def test_where_too_few_agree_each_site_is_told_its_own_reason_or_that_it_is_not_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = world(tmp_path)
    for name in ("south", "west"):
        plain = SiteConfig.read(sites.folders[name] / "site.toml")
        replace(plain, secure=True).write(sites.folders[name] / "site.toml")
    with pytest.raises(UserError, match="Only 1 of the 2"):
        coordinate(config(rules={"patience": 600.0}), tmp_path / "run", sites, pause=0.001)
    why = "The site {!r} cannot take part: Its site.toml says to answer in secure sums only"
    assert sites.ended["north"] == NO_CAUSE
    for name in ("south", "west"):
        assert sites.ended[name].startswith(why.format(name))
        assert not any(other in sites.ended[name] for other in NAMES if other != name)
    assert f"The coordinator has stopped the run: {NO_CAUSE}" in caplog.text


def test_where_the_problem_is_no_single_sites_nobody_is_told_what_the_others_have(tmp_path: Path) -> None:
    frames = {name: people(80, 1)[["sex", "loan", own]] for name, own in zip(NAMES, EACH, strict=False)}
    sites = World({name: site_folder(tmp_path, name, frame) for name, frame in frames.items()})
    with pytest.raises(UserError, match="no feature column in common"):
        coordinate(config(data={"use_group_as_feature": False}), tmp_path / "run", sites, pause=0.001)
    assert sites.ended == dict.fromkeys(NAMES[:3], NO_CAUSE)


def test_a_site_that_failed_to_introduce_itself_is_told_that_the_run_has_ended(tmp_path: Path) -> None:
    sites = world(tmp_path, (90, 70))
    original = sites._answer

    def failing(kind: Any, name: str, message: Message) -> Message | Failure:
        failed = (kind, name) == ("hello", "south")
        return Failure("failed", "The disk is full.") if failed else original(kind, name, message)

    sites._answer = failing  # type: ignore[method-assign]
    owners = {node: name for name, node in sites.nodes.items()}
    with pytest.raises(UserError, match="Only 1 of the 2"):
        coordinate(config(NAMES[:2]), tmp_path / "run", sites, owners.get, pause=0.001)
    assert sites.ended["south"] == "The site 'south' did not introduce itself: The disk is full."
    assert sites.ended["north"] == "Too few sites took part."


def test_a_misfit_that_fixes_its_file_and_comes_back_takes_part(tmp_path: Path) -> None:
    sites = misfit_world(tmp_path)
    sites.mishaps[("west", 2)] = "gone"
    answer = sites._answer

    def fixing(kind: Any, name: str, message: Any) -> Any:
        if kind == "train":
            people(80, 2).to_csv(sites.folders["west"] / "rows.csv", index=False)
        return answer(kind, name, message)

    sites._answer = fixing  # type: ignore[method-assign]
    outcome = coordinate(config(training={"rounds": 4}), tmp_path / "run", sites, pause=0.001)
    assert [len(record["answered"]) for record in outcome.history] == [2, 2, 3, 3]
    assert json.loads((tmp_path / "run" / "sites.json").read_text())["sites"][2]["refused"] is None


def test_it_waits_for_all_sites_before_it_agrees(tmp_path: Path) -> None:
    sites = world(tmp_path)
    sites.away = {"south"}
    after(4, sites.away.clear, sites)
    plan = config(rules={"patience": 30.0}, training={"rounds": 1})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert outcome.history[0]["answered"] == ["north", "south", "west"]


def test_when_patience_is_over_it_begins_with_those_that_came_if_they_are_enough(tmp_path: Path) -> None:
    sites = world(tmp_path)
    sites.away = {"south"}
    outcome = coordinate(config(training={"rounds": 1}), tmp_path / "run", sites, pause=0.001)
    assert outcome.history[0]["answered"] == ["north", "west"] and outcome.history[0]["weights"][1] == 0.0
    sites.away = {"south", "west"}
    with pytest.raises(UserError, match="Only 1 of the 2 sites that a round needs"):
        coordinate(config(), tmp_path / "other", sites, pause=0.001)


def test_without_any_site_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No site came\. Nothing was trained"):
        coordinate(config(), tmp_path / "run", World({}), pause=0.001)


def test_what_federation_toml_leaves_unclear_is_told_at_once(tmp_path: Path) -> None:
    plan = config(rules={"patience": 600.0}, data={"favourable": "maybe"})
    with pytest.raises(UserError, match="no value of the label 'loan' 'maybe'"):
        coordinate(plan, tmp_path / "run", world(tmp_path), pause=0.001)


def test_after_a_restart_it_waits_for_its_members_so_that_no_round_is_taken_without_them(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={(name, 2): "dead" for name in NAMES})
    with pytest.raises(UserError, match="Only 0"):
        coordinate(config(training={"rounds": 2}), tmp_path / "run", sites, pause=0.001)
    sites.mishaps.clear()
    sites.away = {"south"}
    after(3, sites.away.clear, sites)
    plan = config(rules={"patience": 30.0}, training={"rounds": 2})
    assert coordinate(plan, tmp_path / "run", sites, pause=0.001).history[1]["answered"] == ["north", "south", "west"]


def test_a_node_that_gives_no_greeting_in_time_does_not_hold_up_every_look(tmp_path: Path) -> None:
    sites = world(tmp_path)
    answer = sites._answer

    def mute(kind: Any, name: str, message: Any) -> Any:
        return Failure("late", "Slow.") if name == "west" else answer(kind, name, message)

    sites._answer = mute  # type: ignore[method-assign]
    plan = config(rules={"patience": 0.3}, training={"rounds": 1})
    coordinate(plan, tmp_path / "run", sites, pause=0.001)
    asked = [names for kind, names in sites.asked if kind == "hello" and "west" in names]
    assert len(asked) <= 3


def test_a_name_that_belongs_to_anothers_key_is_not_believed(tmp_path: Path) -> None:
    sites = world(tmp_path)
    said: list[str] = []
    owners = {node: name for name, node in sites.nodes.items()}
    owners[sites.nodes["west"]] = "south"
    members = Members(sites, config(), owners.get, lambda state, line: said.append(line), 0.001)
    members.agree_first()
    assert set(members.counts) == {"north", "south"}
    assert any("introduces itself as the site 'west', but has the key of 'south'" in line for line in said)


def test_a_second_node_of_the_same_name_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    sites = world(tmp_path, (90, 70))
    sites.folders["twin"] = site_folder(tmp_path / "twin", "north", people(90, 0))
    sites.nodes["twin"] = 5
    members = Members(sites, config(("south", "north")), lambda node: None, lambda state, line: None, 0.001)
    members.agree_first()
    assert members.node("north") in (5, sites.nodes["north"])
    first = "twin" if members.node("north") == 5 else "north"
    sites.away = {first}
    members.settle()
    other = "north" if first == "twin" else "twin"
    assert members.node("north") == sites.nodes[other]


def test_a_site_of_another_version_is_named(tmp_path: Path) -> None:
    sites = world(tmp_path, (40, 30))
    original = sites._answer

    def older(kind: Any, name: str, message: Message) -> Message | Failure:
        given = original(kind, name, message)
        if kind == "hello" and name == "south" and isinstance(given, Message):
            return Message(given.tensors, {**given.facts, "version": "0.1.9\x1b"})
        return given

    sites._answer = older  # type: ignore[method-assign]
    coordinate(config(NAMES[:2], training={"rounds": 1}), tmp_path / "run", sites, pause=0.001)
    events = [json.loads(line)["message"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event for event in events if "runs ffalm" in event] == [
        f"The site 'south' runs ffalm 0.1.9?, the coordinator {ffalm.__version__}: use the same version everywhere if "
        "messages cannot be read."
    ]
