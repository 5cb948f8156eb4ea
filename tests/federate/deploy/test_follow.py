"""What a run is seen to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.federate.coordinator.run_log import RunLog
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.follow import News
from ffalm.store import RunFolder


@pytest.fixture
def journal(tmp_path: Path) -> RunLog:
    (tmp_path / "run").mkdir()
    return RunLog(RunFolder(tmp_path / "run"), ("north", "west"))


def test_who_is_waited_for_comes_or_is_left_out_is_told_once_and_a_countdown_is_no_news(
    journal: RunLog, tmp_path: Path
) -> None:
    news = News(FederationFolder(tmp_path))
    assert news.since() == []
    journal.say("waiting", "Waiting for west, 60 seconds more at most.")
    journal.say("waiting", "Waiting for west, 57 seconds more at most.")
    journal.say("agreeing", "The site 'north' takes part with 80 training rows.")
    journal.say("agreeing", "The site 'west' takes part with 80 training rows.")
    journal.say("training", "Round 1 of 5: north, west took part.")
    assert news.since() == [
        "Waiting for west, 60 seconds more at most.",
        "The site 'north' takes part with 80 training rows.",
        "The site 'west' takes part with 80 training rows.",
    ]
    assert news.since() == []


def test_what_was_told_before_is_no_news_and_half_a_line_waits_for_the_rest(journal: RunLog, tmp_path: Path) -> None:
    journal.say("waiting", "Waiting for west, 60 seconds more at most.")
    news = News(FederationFolder(tmp_path))
    with open(tmp_path / "run" / "news.log", "a") as file:
        file.write("2026-11-15 12:00:00  The site 'west'")
        file.flush()
        assert news.since() == []
        file.write(" lacks the column 'age'.\n")
    assert news.since() == ["The site 'west' lacks the column 'age'."]
