"""The area under the ROC curve and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ffalm.fairness.ranking import auc_interval


def test_the_area_is_scikit_learns_with_ties() -> None:
    draw = np.random.default_rng(0)
    scores, favourable = draw.integers(0, 6, 200).astype(float), draw.random(200) < 0.4
    assert auc_interval(scores, favourable)[0] == pytest.approx(roc_auc_score(favourable, scores))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Normal scores a standard deviation apart have the area Phi(1 / sqrt 2)."""
    truth, draw = 0.7602, np.random.default_rng(1)
    favourable = np.arange(80) < 30
    ends = [auc_interval(draw.normal(favourable.astype(float)), favourable)[1:] for _ in range(400)]
    covered = np.mean([low <= truth <= high for low, high in ends])
    assert 0.92 < covered < 0.98


def test_it_is_undefined_without_both_outcomes() -> None:
    assert all(math.isnan(one) for one in auc_interval(np.arange(3.0), np.ones(3, dtype=bool)))
    assert auc_interval(np.arange(4.0), np.array([False, False, True, True]))[0] == 1.0
