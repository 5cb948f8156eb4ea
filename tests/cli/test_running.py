"""What a person sees while a study runs."""

from __future__ import annotations

from ffalm.cli.running import RemainingTime


def test_the_time_left_follows_the_pace_of_rounds_and_not_the_start_of_processes() -> None:
    remaining = RemainingTime(10)
    assert remaining.seconds("run", 1, 60.0) is None
    assert remaining.seconds("run", 2, 62.0) == 2.0 * 8
    assert remaining.seconds("run", 3, 64.0) == 2.0 * 7


def test_first_rounds_that_come_together_do_not_count_as_fast() -> None:
    remaining = RemainingTime(40)
    for run in range(4):
        assert remaining.seconds(run, 1, 100.0) is None
    left = [remaining.seconds(run, 2, 102.0) for run in range(4)]
    assert left[-1] == 2.0 * 32 / 4
    assert all(one is not None and one >= left[-1] for one in left)


def test_rounds_that_a_resumed_run_has_behind_it_are_not_left() -> None:
    remaining = RemainingTime(20)
    assert remaining.seconds("one", 6, 10.0) is None
    assert remaining.seconds("one", 7, 11.0) == 13.0
    assert remaining.seconds("other", 9, 12.0) == 2.0 * 4 / 2
