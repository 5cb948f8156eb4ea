"""What a run is seen to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.federate.coordinator.run_log import RunLog
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.follow import Events
from ffalm.store import RunFolder


@pytest.fixture
def run_log(tmp_path: Path) -> RunLog:
    (tmp_path / "run").mkdir()
    return RunLog(RunFolder(tmp_path / "run"), ("north", "west"))


def test_an_event_about_sites_is_reported_once(run_log: RunLog, tmp_path: Path) -> None:
    events = Events(FederationFolder(tmp_path))
    assert events.since() == []
    run_log.say("waiting", "Waiting for west, 60 seconds at most.")
    run_log.say("waiting", "Waiting for west, 60 seconds at most.")
    run_log.say("agreeing", "The site 'north' takes part with 80 training rows.")
    run_log.say("agreeing", "The site 'west' takes part with 80 training rows.")
    run_log.say("training", "Round 1 of 5: north, west took part.")
    assert events.since() == [
        "Waiting for west, 60 seconds at most.",
        "The site 'north' takes part with 80 training rows.",
        "The site 'west' takes part with 80 training rows.",
    ]
    assert events.since() == []


def test_earlier_events_are_skipped_and_half_a_line_waits_for_the_rest(run_log: RunLog, tmp_path: Path) -> None:
    run_log.say("waiting", "Waiting for west, 60 seconds at most.")
    events = Events(FederationFolder(tmp_path))
    with open(tmp_path / "run" / "events.jsonl", "a") as file:
        file.write('{"time": "2026-11-15 12:00:00", "message": "The site \'west\'')
        file.flush()
        assert events.since() == []
        file.write(" lacks the column 'age'.\"}\n")
    assert events.since() == ["The site 'west' lacks the column 'age'."]


def test_control_characters_of_a_site_never_reach_the_terminal(run_log: RunLog, tmp_path: Path) -> None:
    events = Events(FederationFolder(tmp_path))
    run_log.say("agreeing", "The site 'north' cannot bring its data: \x1b[2J\x1b]0;owned\x07\rAll is well.")
    assert events.since() == ["The site 'north' cannot bring its data: ?[2J?]0;owned??All is well."]
