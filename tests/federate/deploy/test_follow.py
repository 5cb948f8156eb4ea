"""What a run is seen to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ffalm.errors import UserError
from ffalm.federate.coordinator.run_log import RunLog
from ffalm.federate.deploy import follow
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.follow import Events
from ffalm.studies.store import RunFolder
from ffalm.system.files import write_atomic


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
    run_log.say("agreeing", "The site 'north' cannot take part: \x1b[2J\x1b]0;owned\x07\rAll is well.")
    assert events.since() == ["The site 'north' cannot take part: ?[2J?]0;owned??All is well."]


class Coordinator:
    """A coordinator whose run has a status, without any process."""

    def __init__(self, folder: FederationFolder, statuses: list[str], pid: int | None = 7) -> None:
        self.folder, self._statuses = folder, statuses
        self.process = SimpleNamespace(pid=lambda: pid)
        self.control = SimpleNamespace(
            status=lambda run: self._statuses.pop(0), details=lambda run: "ImportError", submit=lambda app: 5
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    monkeypatch.setattr(follow, "_SECONDS_A_LOOK", 0.0)
    monkeypatch.setattr(FederationFolder, "write_app", lambda self: None)
    (tmp_path / "coordinator").mkdir()
    return FederationFolder(tmp_path)


def test_a_training_in_the_background_has_begun_when_it_says_what_it_does(
    run_log: RunLog, folder: FederationFolder
) -> None:
    run_log.say("waiting", "Waiting for west, 60 seconds at most.")
    follow.await_start(Coordinator(folder, []), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statuses", "pid", "reason"),
    [
        (["running", "finished:failed"], 7, "ended without a result: ImportError"),
        ([], None, "The coordinator stopped"),
    ],
)
def test_a_training_in_the_background_that_ends_at_once_is_told(
    folder: FederationFolder, statuses: list[str], pid: int | None, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        follow.await_start(Coordinator(folder, statuses, pid), 5)  # type: ignore[arg-type]


def test_a_training_in_the_background_that_stops_with_a_reason_tells_it(
    run_log: RunLog, folder: FederationFolder
) -> None:
    run_log.say("stopped", "Too few sites came.")
    with pytest.raises(UserError, match="Too few sites came"):
        follow.await_start(Coordinator(folder, []), 5)  # type: ignore[arg-type]


def test_a_training_has_ended_when_its_report_is_written_and_an_audit_when_its_result_is(
    folder: FederationFolder,
) -> None:
    audit = folder.new_audit()
    for place in (folder, audit):
        write_atomic(place.run / "result.json", "{}")
    assert follow.result(folder) is None and follow.result(audit) == {}
    write_atomic(folder.run / "report.md", "")
    assert follow.result(folder) == {}


def test_a_run_whose_command_was_killed_is_found_again_by_the_same_coordinator_alone(folder: FederationFolder) -> None:
    first: Any = Coordinator(folder, ["running", "finished:completed"])
    assert follow.under_way(first) is None
    assert follow.submit(first) == 5
    assert follow.under_way(first) == 5
    assert follow.under_way(first) is None, "it has ended since"
    restarted: Any = Coordinator(folder, ["running"], pid=8)
    assert follow.under_way(restarted) is None
