"""Plans for scoring: kept while they come back, given up when there are too many."""

from __future__ import annotations

from typing import cast

from ffalm.engines.stacked.plans import Plans, Spans
from ffalm.engines.stacked.row_layout import Span
from ffalm.engines.stacked.scoring import Plan


class Made:
    """Plans that are mere objects, and what they were made for."""

    def __init__(self, limit: int) -> None:
        self._plans, self.made = Plans(limit), list[Spans]()
        self.clear = self._plans.clear

    def of(self, *spans: Span) -> Plan:
        return self._plans.of(spans, self._make)

    def _make(self, spans: Spans) -> Plan:
        self.made.append(spans)
        return cast(Plan, object())


def test_a_plan_that_comes_back_is_made_once() -> None:
    plans = Made(100)
    assert plans.of((0, 60)) is plans.of((0, 60))
    assert len(plans.made) == 1


def test_those_longest_unused_make_room() -> None:
    plans = Made(100)
    for span in ((0, 40), (40, 40), (0, 40), (80, 50), (0, 40), (40, 40)):
        plans.of(span)
    assert plans.made == [((0, 40),), ((40, 40),), ((80, 50),), ((40, 40),)]


def test_a_plan_of_more_rows_than_are_kept_is_still_made() -> None:
    plans = Made(10)
    first = plans.of((0, 60), (60, 5))
    assert plans.of((0, 60), (60, 5)) is first
    plans.of((0, 5))
    assert plans.of((0, 60), (60, 5)) is not first


def test_none_is_left_where_all_are_given_up() -> None:
    plans = Made(100)
    plans.of((0, 60))
    plans.clear()
    plans.of((0, 60))
    assert len(plans.made) == 2
