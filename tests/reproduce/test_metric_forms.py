"""Gaps averaged over random pieces of the rows."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import numpy as np
import pytest

from ffalm.reproduce.metric_forms import PIECES, piecewise


def test_a_small_case_is_the_mean_over_every_piece_there_is() -> None:
    # Twenty rows, hence pieces of two: (prediction, label, group) of 5 + 3 chosen rows and 4 + 8 others.
    rows = [(1, 1, 0)] * 5 + [(1, 1, 1)] * 3 + [(0, 1, 0)] * 4 + [(0, 0, 1)] * 8
    counts = np.zeros((2, 2, 2), dtype=int)
    for row in rows:
        counts[row] += 1
    mixed = [pair for pair in itertools.combinations(rows, len(rows) // PIECES) if pair[0][2] != pair[1][2]]
    favoured = [pair for pair in mixed if pair[0][1] == pair[1][1] == 1]
    found = piecewise(counts.tolist())
    assert found["dpd"] == pytest.approx(fmean(abs(one[0] - other[0]) for one, other in mixed), abs=0.02)
    assert found["eod"] == pytest.approx(fmean(abs(one[0] - other[0]) for one, other in favoured), abs=0.02)


def test_chance_makes_the_gap_of_pieces_larger_than_that_of_all_rows_together() -> None:
    counts = [[[450, 450], [0, 0]], [[0, 0], [50, 50]]]  # equal rates: no gap at all
    assert piecewise(counts)["dpd"] > 0.03
    many = (1_000 * np.array(counts)).tolist()
    assert piecewise(many)["dpd"] < 0.003


def test_one_call_is_as_good_as_another() -> None:
    counts = [[[40, 30], [20, 10]], [[5, 6], [70, 8]]]
    assert piecewise(counts) == piecewise(counts)


def test_a_gap_that_no_piece_has_is_undefined() -> None:
    found = piecewise([[[50, 40], [0, 5]], [[10, 10], [0, 5]]])  # nobody of the first group has the favourable label
    assert found["dpd"] > 0
    assert math.isnan(found["eod"])
    assert all(math.isnan(gap) for gap in piecewise(None).values())
