"""Rows that it takes to tell a gap from 0, against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ffalm.errors import UserError
from ffalm.fairness import Tally


def selected(shares: list[tuple[int, int]]) -> Tally:
    """A Tally whose groups have (selected, all) rows, every label favourable and half of them right."""
    confusion = torch.zeros(2, 2, len(shares), dtype=torch.int64)
    for group, (hits, rows) in enumerate(shares):
        confusion[1, 1, group], confusion[0, 1, group] = hits, rows - hits
    return Tally(confusion, torch.zeros(2, len(shares), dtype=torch.float64))


def test_with_that_many_rows_the_test_of_two_proportions_finds_the_gap_as_often_as_asked() -> None:
    tally = selected([(300, 1000), (100, 500)])
    rows = tally.rows_needed("dpd")
    first, second = round(rows * 2 / 3), round(rows / 3)
    draws = np.random.default_rng(0)
    a, b = draws.binomial(first, 0.3, 20000) / first, draws.binomial(second, 0.2, 20000) / second
    pooled = (a * first + b * second) / (first + second)
    z = np.abs(a - b) / np.sqrt(pooled * (1 - pooled) * (1 / first + 1 / second))
    assert np.mean(z > 1.959964) == pytest.approx(0.8, abs=0.02)


def test_a_textbook_number() -> None:
    # 50 % against 40 %, groups of equal size, 5 % two-sided, power 80 %: 388 rows a group (Fleiss, without correction)
    assert math.ceil(selected([(50, 100), (40, 100)]).rows_needed("dpd") / 2) == 388


def test_more_rows_are_needed_for_smaller_gaps_and_none_suffice_for_no_gap() -> None:
    gaps = [selected([(50, 100), (40 + more, 100)]).rows_needed() for more in (0, 5, 8)]
    assert gaps == sorted(gaps)
    assert selected([(50, 100), (25, 50)]).rows_needed() == math.inf
    assert math.isnan(selected([(50, 100), (0, 0)]).rows_needed())


def test_of_several_groups_the_farthest_two_are_compared() -> None:
    two, three = selected([(50, 100), (20, 100)]), selected([(50, 100), (30, 100), (20, 100)])
    assert three.rows_needed("eod") == pytest.approx(two.rows_needed("eod") * 1.5)


def test_only_gaps_between_rates_have_a_number_of_rows() -> None:
    with pytest.raises(UserError, match="gap between rates 'loss'"):
        selected([(1, 2), (1, 2)]).rows_needed("loss")
    with pytest.raises(UserError, match="between 0 and 1"):
        selected([(1, 2), (1, 2)]).rows_needed("dpd", power=1.0)
    with pytest.raises(UserError, match="between 0 and 1"):
        selected([(1, 2), (1, 2)]).rows_needed("dpd", level=0.0)


def test_groups_that_are_not_compared_need_no_rows() -> None:
    whole = selected([(50, 100), (40, 100), (0, 200)]).excluding(1)
    assert whole.rows_needed("dpd") == pytest.approx(2 * selected([(50, 100), (40, 100)]).rows_needed("dpd"))
