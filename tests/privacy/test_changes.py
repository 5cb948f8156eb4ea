"""Clipping, averaging and noise of what clients changed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ffalm.privacy import KeyedNoise
from ffalm.privacy.changes import noisy_mean, shrinkage, size_of
from ffalm.randomness import Purpose

START = {"weight": torch.zeros(2, 2), "bias": torch.ones(1), "steps": torch.tensor(3)}
QUIET = torch.zeros(5, dtype=torch.float64)


def moved(*by: float, steps: int = 4) -> dict[str, Tensor]:
    """The start with its five floating numbers moved."""
    weight = torch.tensor(by[:4]).view(2, 2)
    return {"weight": weight, "bias": START["bias"] + torch.tensor(by[4:]), "steps": torch.tensor(steps)}


def test_a_change_is_shortened_to_the_clip_over_all_floating_numbers() -> None:
    assert shrinkage(START, moved(3.0, 0.0, 0.0, 0.0, 4.0), 1.0) == pytest.approx(1 / 5)


def test_a_shorter_change_stays_as_it_is() -> None:
    assert shrinkage(START, moved(3.0, 0.0, 0.0, 0.0, 4.0), 5.0) == 1.0
    assert shrinkage(START, START, 1.0) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_change_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    spoilt, well = moved(bad, 0.0, 0.0, 0.0, 0.0), moved(0.0, 0.5, 0.0, 0.0, 0.0)
    mean = noisy_mean(START, [spoilt, well], [0.5, 0.5], 1.0, 0.0, QUIET)
    assert mean["weight"].tolist() == [[0.0, 0.25], [0.0, 0.0]]


def test_the_mean_is_of_clipped_changes() -> None:
    mean = noisy_mean(
        START, [moved(3.0, 0.0, 0.0, 0.0, 4.0), moved(0.0, 0.6, 0.0, 0.0, 0.0, steps=6)], [0.25, 0.75], 1.0, 0.0, QUIET
    )
    torch.testing.assert_close(mean["weight"], torch.tensor([[0.25 * 0.6, 0.75 * 0.6], [0.0, 0.0]]))
    torch.testing.assert_close(mean["bias"], torch.tensor([1 + 0.25 * 0.8]))
    assert mean["steps"] == 6 and mean["weight"].dtype == torch.float32


def test_no_answer_whatever_moves_the_mean_further_than_twice_the_clip_times_its_weight() -> None:
    draws = torch.Generator().manual_seed(0)
    others = [moved(0.1, 0.2, 0.3, 0.4, 0.5), moved(9.0, 9.0, 9.0, 9.0, 9.0)]
    wide = {**START, "weight": START["weight"].double(), "bias": START["bias"].double()}

    def mean(by: Tensor) -> Tensor:
        found = noisy_mean(wide, [*others, moved(*by.tolist())], [0.2, 0.5, 0.3], 0.7, 0.0, QUIET)
        return torch.cat([found["weight"].flatten(), found["bias"]])

    answers = [10 ** float(torch.rand(1, generator=draws) * 4 - 2) * torch.randn(5, generator=draws) for _ in range(40)]
    answers += [-answer for answer in answers]
    furthest = max(float((mean(a) - mean(b)).norm()) for a in answers[::4] for b in answers)
    assert 1.9 * 0.7 * 0.3 < furthest <= 2 * 0.7 * 0.3 * (1 + 1e-6)


def test_noise_has_the_standard_deviation_that_the_accountant_counts_with() -> None:
    size = 40_000
    start = {"weight": torch.zeros(size, dtype=torch.float64)}
    draws = KeyedNoise(1).normal(Purpose.MODEL_NOISE, 1, size)
    found = noisy_mean(start, [start, start], [0.3, 0.7], 0.5, 4.0, draws)["weight"]
    assert float(found.std()) == pytest.approx(4.0 * 0.5 * 0.7, rel=0.02)
    assert abs(float(found.mean())) < 4 * 1.4 / math.sqrt(size)


def test_every_floating_number_gets_noise_of_its_own_and_counters_none() -> None:
    assert size_of(START) == 5
    found = noisy_mean(START, [START], [1.0], 1.0, 1.0, torch.arange(1.0, 6.0, dtype=torch.float64))
    assert found["weight"].flatten().tolist() == [1.0, 2.0, 3.0, 4.0] and found["bias"].tolist() == [6.0]
    assert found["steps"] == 3


def test_a_variance_of_batchnorm_stays_a_variance() -> None:
    start = {"norm.running_var": torch.ones(3)}
    found = noisy_mean(start, [start], [1.0], 1.0, 1.0, torch.tensor([-5.0, 0.0, 5.0], dtype=torch.float64))
    assert found["norm.running_var"].tolist() == [0.0, 1.0, 6.0]
