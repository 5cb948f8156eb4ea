"""Thresholds of three groups under several bounds, against all combinations of thresholds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ffalm.fairness import ScoreHistogram
from ffalm.targets.rate_table import RateTable
from ffalm.targets.target import Target
from ffalm.targets.thresholds import group_thresholds

BINS = 5


@pytest.mark.parametrize(
    "text",
    ["dpd <= 0.1", "equalized_odds <= 0.25", "eod <= 0.2, impact_ratio >= 0.7", "dpd <= 0.2, accuracy_parity <= 0.1"],
)
@pytest.mark.parametrize("seed", range(2))
def test_no_combination_within_the_bounds_is_better(text: str, seed: int) -> None:
    draws = np.random.default_rng(seed)
    slope = np.linspace(0.2, 1.8, BINS)[:, None, None, None] ** np.array([-1, 1])[:, None]  # (bin, 1, label, 1)
    counts = torch.from_numpy(draws.poisson(12 * slope * np.ones((1, 1, 1, 3))))
    histogram, target = ScoreHistogram(counts), Target.parse(text)
    table = RateTable.of(histogram, target)
    found = group_thresholds(table, BINS // 2)

    def value(edges: tuple[int, ...]) -> float:
        return sum(float(table.value[group, edge]) for group, edge in enumerate(edges))

    allowed = [
        edges
        for edges in itertools.product(range(BINS + 1), repeat=3)
        if target.meets(histogram.tally(list(edges)).metrics())
    ]
    assert found is not None and tuple(found) in allowed
    assert value(tuple(found)) == max(map(value, allowed))
