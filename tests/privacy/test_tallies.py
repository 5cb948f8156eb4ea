"""Tallies with noise: how far a client can move them, how much noise that takes, and what is made whole again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from ffalm.fairness import Tally
from ffalm.privacy import KeyedNoise
from ffalm.privacy.tallies import made_whole, noisy_tally, reach, size_of
from ffalm.randomness import Purpose

COUNTS = torch.tensor([[40, 10], [30, 0]])


def tally(favourable: float = 0.5, mean: float = 0.4, counts: Tensor = COUNTS) -> Tally:
    """Rows of which a share in each cell gets prediction 1, with one mean loss everywhere."""
    ones = (favourable * counts).long()
    return Tally(torch.stack([counts - ones, ones]), mean * counts.double())


QUIET = torch.zeros(size_of(tally()), dtype=torch.float64)


def test_without_noise_a_tally_stays_as_it_is() -> None:
    found = noisy_tally([tally()], 2.0, 0.0, QUIET)
    assert torch.equal(found.confusion, tally().confusion.double()) and torch.equal(found.loss, tally().loss)


@pytest.mark.parametrize("mean", [5.0, math.inf, math.nan])
def test_losses_count_up_to_their_bound(mean: float) -> None:
    found = noisy_tally([tally(mean=mean)], 2.0, 0.0, QUIET)
    assert torch.equal(found.loss, 2.0 * COUNTS.double())


def test_losses_that_are_reported_below_0_count_as_0() -> None:
    """Else one client could move the sum without bound."""
    assert torch.equal(noisy_tally([tally(mean=-7.0)], 2.0, 0.0, QUIET).loss, torch.zeros(2, 2, dtype=torch.float64))


def test_what_noise_leaves_of_a_cell_keeps_its_proportions_however_little_it_is() -> None:
    """0.3 and 0.1 of the 8 rows of one cell are left, nothing of the other's: 6 and 2, and 4 and 4."""
    left = torch.tensor([[[0.3, -3.0]], [[0.1, -0.5]]], dtype=torch.float64)
    found = made_whole(Tally(left, torch.zeros(1, 2, dtype=torch.float64)), torch.tensor([[8, 8]]))
    torch.testing.assert_close(found.confusion, torch.tensor([[[6.0, 4.0]], [[2.0, 4.0]]], dtype=torch.float64))


def test_the_most_different_tallies_are_two_reaches_apart() -> None:
    bound = 3.0
    ends = [
        noisy_tally([tally(share, mean)], bound, 0.0, QUIET)
        for share, mean in itertools.product((0.0, 1.0), (0.0, bound, 9.0))
    ]

    def apart(a: Tally, b: Tally) -> float:
        return math.hypot(float((a.confusion - b.confusion).norm()), float((a.loss - b.loss).norm()) / bound)

    assert max(apart(a, b) for a in ends for b in ends) == pytest.approx(2 * reach(COUNTS))
    assert reach(COUNTS) == pytest.approx(math.sqrt(3) / 2 * math.sqrt(40**2 + 10**2 + 30**2))


def test_noise_on_losses_has_the_standard_deviation_that_the_accountant_counts_with() -> None:
    losses = torch.stack(
        [
            noisy_tally([tally()], 2.0, 5.0, KeyedNoise(0).normal(Purpose.TALLY_NOISE, round, 12)).loss
            for round in range(1000)
        ]
    )
    spread = 5.0 * 2.0 * reach(COUNTS)
    assert float((losses - tally().loss)[:, COUNTS > 0].std()) == pytest.approx(spread, rel=0.05)
    assert not losses[:, COUNTS == 0].any()
    assert (losses.mean(0) - tally().loss).abs().max() < 4 * spread / math.sqrt(1000)


def test_predictions_are_made_whole_again() -> None:
    for round in range(50):
        draws = KeyedNoise(0).normal(Purpose.TALLY_NOISE, round, 12)
        found = noisy_tally([tally()], 2.0, 3.0, draws)
        assert (found.confusion >= 0).all()
        torch.testing.assert_close(found.count, COUNTS.double())
        undefined = {"equalized_odds", "impact_ratio", "predictive_parity"}  # of cells or predictions that are empty
        assert all(math.isfinite(value) or name in undefined for name, value in found.metrics(0).items())


def test_a_cell_that_noise_has_emptied_is_spread_evenly() -> None:
    draws = torch.cat([torch.full((8,), -100.0), torch.zeros(4)]).double()
    found = noisy_tally([tally()], 2.0, 1.0, draws)
    assert torch.equal(found.confusion, torch.stack([COUNTS, COUNTS]) / 2)


def test_a_sum_gets_the_noise_that_its_largest_client_needs() -> None:
    small, large = tally(counts=COUNTS // 10), tally()
    draws = torch.cat([torch.zeros(8), torch.ones(4)]).double()
    found = noisy_tally([small, large, small], 2.0, 1.5, draws)
    noise = found.loss - (small.loss + large.loss + small.loss)
    torch.testing.assert_close(noise[COUNTS > 0], torch.full((3,), 2.0 * 1.5 * reach(COUNTS), dtype=torch.float64))
    torch.testing.assert_close(found.count, (COUNTS + 2 * (COUNTS // 10)).double())
