"""Bounds over every assignment of rows without a group, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ffalm.fairness import Tally
from ffalm.fairness.missing_groups import BOUNDED, bounds


def test_demographic_parity_by_hand() -> None:
    """Selected 6 of 10 and 2 of 10; unknown: 1 selected, 2 not.

    Farthest: the selected one to the first group, the others to the second: 7/11 - 2/12. Nearest: 6/12 - 3/11.
    """
    known = Tally.of_counts([[[2, 4], [2, 4]], [[3, 1], [3, 1]]])  # by prediction, label and group
    unknown = Tally.of_counts([[[1], [1]], [[1], [0]]])
    assert bounds(known, unknown, "dpd", 1) == pytest.approx((6 / 12 - 3 / 11, 7 / 11 - 2 / 12))
    assert bounds(known, unknown, "impact_ratio", 1) == pytest.approx(((2 / 12) / (7 / 11), (3 / 11) / (6 / 12)))


def test_without_unknown_rows_the_bounds_are_the_metric() -> None:
    draws = torch.Generator().manual_seed(0)
    known = Tally.of_counts(torch.randint(1, 20, (2, 2, 3), generator=draws))
    nobody = Tally.of_counts(torch.zeros(2, 2, 1, dtype=torch.int64))
    for name in BOUNDED:
        assert bounds(known, nobody, name, 1) == pytest.approx((known.metrics()[name],) * 2)


def test_they_are_undefined_where_a_group_has_no_rows() -> None:
    known = Tally.of_counts([[[2, 0], [2, 0]], [[3, 0], [3, 0]]])
    nobody = Tally.of_counts(torch.zeros(2, 2, 1, dtype=torch.int64))
    assert all(math.isnan(end) for end in bounds(known, nobody, "dpd", 1))


@pytest.mark.parametrize("places", [[0, 1], [1, 0]])
def test_a_group_that_is_never_selected_is_bounded_in_any_order(places: list[int]) -> None:
    """None of 40 and 20 of 40 are selected, and none of 5 rows without a group: the ratio is 0 whatever theirs is."""
    counts = torch.tensor([[[20, 10], [20, 10]], [[0, 10], [0, 10]]])[..., places]
    unknown = Tally.of_counts([[[3], [2]], [[0], [0]]])
    assert bounds(Tally.of_counts(counts), unknown, "impact_ratio", 1) == (0, 0)


def test_where_nobody_can_be_selected_there_is_no_ratio() -> None:
    nobody = Tally.of_counts([[[20, 20], [20, 20]], [[0, 0], [0, 0]]])
    ends = bounds(nobody, Tally.of_counts([[[3], [2]], [[0], [0]]]), "impact_ratio", 1)
    assert all(math.isnan(end) for end in ends)


@pytest.mark.parametrize("places", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_a_group_without_rows_leaves_a_gap_undefined_in_any_order(places: list[int]) -> None:
    known = Tally.of_counts(torch.tensor([[[2, 0, 5], [2, 0, 1]], [[3, 0, 2], [3, 0, 2]]])[..., places])
    selected = Tally.of_counts([[[0], [0]], [[0], [2]]])  # rows that no assignment turns into misses
    assert all(math.isnan(end) for end in bounds(known, selected, "eod", 1))
