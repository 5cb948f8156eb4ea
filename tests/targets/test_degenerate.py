from __future__ import annotations

import pytest

from ffalm.targets.degenerate import Flaws, degenerate_reason, flaws_of, majority_share


@pytest.mark.parametrize(
    ("predicted", "accuracy", "dual", "flaws"),
    [
        ([60, 40], 0.9, 0.0, Flaws(False, False, False)),
        ([99, 1], 0.9, 100.0, Flaws(False, False, False)),
        ([99.5, 0.5], 0.8, 0.0, Flaws(True, False, False)),
        ([60, 40], 0.79, 0.0, Flaws(False, True, False)),
        ([60, 40], 0.9, 101.0, Flaws(False, False, True)),
    ],
)
def test_a_model_is_flawed_beyond_99_percent_of_one_label_below_the_majority_or_with_a_dual_beyond_100(
    predicted: list[float], accuracy: float, dual: float, flaws: Flaws
) -> None:
    assert flaws_of(predicted, [80, 20], accuracy, dual) == flaws
    assert bool(flaws) == (flaws != Flaws(False, False, False))


def test_without_rows_only_the_dual_can_be_judged() -> None:
    assert not flaws_of([0], [0], 0.0)
    assert flaws_of([0], [0], 0.0, 1e6).runaway_dual
    assert majority_share([0, 0]) == 0.0


def test_the_reason_counts_runs_where_there_are_several() -> None:
    assert degenerate_reason(1, 1, 0.9, 0.8, 1) == (
        "one label is predicted for over 99 % of the test rows and a dual ran away (beyond 100)"
    )
    assert degenerate_reason(0, 5, 0.9, 0.8, 2) == "in 2 of 5 runs a dual ran away (beyond 100)"
    assert degenerate_reason(0, 5, 0.9, 0.8) == ""
