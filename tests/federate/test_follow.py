"""What a run is seen to do."""

from __future__ import annotations

from ffalm.federate.follow import News


def said(state: str, message: str) -> dict[str, str]:
    return {"state": state, "message": message}


def test_who_is_waited_for_is_told_once_and_a_countdown_is_no_news() -> None:
    news = News({})
    assert news.of({}) == ""
    assert news.of(said("waiting", "Waiting for west, 60 seconds more at most.")) == (
        "Waiting for west, 60 seconds more at most."
    )
    assert news.of(said("waiting", "Waiting for west, 57 seconds more at most.")) == ""
    assert news.of(said("waiting", "Waiting for south, west, 54 seconds more at most.")) != ""


def test_what_an_earlier_run_said_is_no_news_and_rounds_are_shown_elsewhere() -> None:
    before = said("waiting", "Waiting for west, 3 seconds more at most.")
    news = News(before)
    assert news.of(before) == ""
    assert news.of(said("training", "Round 1 of 5: north, south took part.")) == ""
    assert news.of(said("agreeing", "The site 'west' takes part with 80 training rows.")) != ""
