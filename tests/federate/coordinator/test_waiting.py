"""How long the coordinator waits for sites, what it says of that, and how often it asks a site that fails."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.federate.makers import World, config, world

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.waiting import Patience, Retries, waiting_for

FULL = "The disk is full."


def failing_at(root: Path, failing: Kind) -> World:
    """Three sites of which west fails at one kind of question."""
    sites = world(root)
    original = sites._answer

    def answering(kind: Kind, name: str, message: Message) -> Message | Failure:
        return Failure("failed", FULL) if (kind, name) == (failing, "west") else original(kind, name, message)

    sites._answer = answering  # type: ignore[method-assign]
    return sites


def asked_again(root: Path, kind: Kind, enough: int) -> tuple[int, list[str]]:
    """How often west is asked in 0.6 seconds, with a look each 0.01, and what is said while the coordinator waits."""
    sites = failing_at(root, kind)
    owners = {node: name for name, node in sites.nodes.items()}
    plan = config(rules={"patience": 0.6, "min_sites": enough}, training={"rounds": 1})
    if enough == 2:
        coordinate(plan, root / "run", sites, owners.get, pause=0.01)
    else:
        with pytest.raises(UserError, match=FULL):
            coordinate(plan, root / "run", sites, owners.get, pause=0.01)
    events = [json.loads(line)["message"] for line in (root / "run" / "events.jsonl").read_text().splitlines()]
    asked = [names for one, names in sites.asked if one == kind and "west" in names]
    return len(asked), [event for event in events if event.startswith("Waiting for")]


TIME = r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
AGAIN = rf"{FULL} A site that failed is asked again at least every minute\."
WITHOUT = "To go on without, stop this run, lower 'patience' under [rules] of federation.toml and run again."


def test_a_site_that_does_not_introduce_itself_is_asked_less_and_less_often(tmp_path: Path) -> None:
    times, (said,) = asked_again(tmp_path, "hello", 2)
    assert 4 <= times <= 12  # after 0.01 seconds, 0.02, 0.04, 0.08, then each 0.1
    why = f"Waiting for west {TIME}. The site 'west' did not introduce itself: {AGAIN} "
    assert re.fullmatch(why + re.escape(WITHOUT), said)


def test_a_site_that_does_not_answer_the_terms_is_asked_less_and_less_often(tmp_path: Path) -> None:
    times, said = asked_again(tmp_path, "agree", 3)
    assert 5 <= times <= 13  # and once when the run ends
    why = f"Waiting for more sites {TIME}. The site 'west' did not agree to the terms: {AGAIN}"
    assert len(said) == 1 and re.fullmatch(why, said[0])


def test_how_to_go_on_without_is_told_only_where_the_others_are_enough() -> None:
    patience = Patience(60)
    assert "lower 'patience'" in waiting_for(["west"], {}, patience, enough=True)
    assert waiting_for(["west"], {}, patience, enough=False) == f"Waiting for west {patience.until}."
    assert FULL not in waiting_for(["east"], {"west": FULL}, patience, enough=False)
    assert not patience.over and Patience(0).over
    assert Patience(float("inf")).until == Patience(1e300).until == "without end"


def test_a_node_that_was_gone_or_has_answered_may_be_asked_at_once() -> None:
    retries = Retries(pause=50.0, patience=600.0)
    retries.failed(7, late=False)
    assert not retries.due(7) and retries.due(8)
    retries.keep({7, 8})
    assert not retries.due(7)
    retries.keep({8})
    assert retries.due(7)
    retries.failed(7, late=False)
    retries.answered(7)
    assert retries.due(7)


def test_pauses_between_questions_double_up_to_ten_times_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    retries, waits = Retries(pause=3.0, patience=600.0), []
    for _ in range(6):
        retries.failed(7, late=False)
        began = now[0]
        while not retries.due(7):
            now[0] += 0.5
        waits.append(now[0] - began)
    assert waits == [3, 6, 12, 24, 30, 30]
    retries.failed(7, late=True)
    now[0] += 59
    assert not retries.due(7)
    now[0] += 1
    assert retries.due(7)
