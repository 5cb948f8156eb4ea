"""The area under the ROC curve and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ffalm.fairness.ranking import area_interval, delong


def test_the_area_is_scikit_learns_with_ties() -> None:
    draw = np.random.default_rng(0)
    scores, favourable = draw.integers(0, 6, 200).astype(float), draw.random(200) < 0.4
    assert delong(scores, favourable)[0] == pytest.approx(roc_auc_score(favourable, scores))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Normal scores a standard deviation apart have the area Phi(1 / sqrt 2)."""
    truth, draw = 0.7602, np.random.default_rng(1)
    favourable = np.arange(80) < 30
    ends = [area_interval(*delong(draw.normal(favourable.astype(float)), favourable)) for _ in range(400)]
    covered = np.mean([low <= truth <= high for low, high in ends])
    assert 0.92 < covered < 0.98


def test_it_is_undefined_without_both_outcomes() -> None:
    assert all(math.isnan(one) for one in delong(np.arange(3.0), np.ones(3, dtype=bool)))
    area, variance = delong(np.arange(4.0), np.array([False, False, True, True]))
    assert area == 1.0 and all(math.isnan(end) for end in area_interval(area, variance))


@pytest.mark.parametrize("alone", [True, False])
def test_one_row_of_a_kind_has_an_area_and_no_interval(alone: bool) -> None:
    """Its spread is not known: taken as 0, the interval covered the truth in 28 % of draws of one among 60."""
    favourable = np.full(50, not alone)
    favourable[20] = alone
    area, variance = delong(np.arange(50.0), favourable)
    assert area == pytest.approx(20 / 49 if alone else 29 / 49)
    assert math.isnan(variance) and all(math.isnan(end) for end in area_interval(area, variance))
