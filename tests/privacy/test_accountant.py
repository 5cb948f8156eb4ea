"""The accountant against hand-worked numbers and an independent integration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from ffalm.privacy import describe_guarantee, epsilon_of
from ffalm.privacy.accountant import log_delta


def delta_by_integration(mu: float, epsilon: float) -> float:
    """sup over tests of P(N(mu, 1) says so) - e^epsilon P(N(0, 1) does), from the two densities alone."""

    def excess(x: float) -> float:
        return max(0.0, float(stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x)))

    begins = epsilon / mu + mu / 2  # the densities' ratio is e^epsilon here
    found, _ = integrate.quad(excess, begins, max(begins, mu) + 12, epsabs=1e-15, epsrel=1e-10, limit=200)
    return float(found)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
def test_delta_at_the_epsilon_found_is_the_one_asked_for(mu: float, delta: float) -> None:
    assert delta_by_integration(mu, epsilon_of(mu, delta)) == pytest.approx(delta, rel=1e-5)


def test_epsilon_of_one_standard_deviation_at_1e_5_is_4_38() -> None:
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)


def test_at_epsilon_0_delta_is_the_distance_of_the_two_distributions() -> None:
    assert math.exp(log_delta(1.0, 0.0)) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=1e-12)


def test_a_delta_above_that_distance_costs_no_epsilon() -> None:
    assert epsilon_of(0.01, 0.01) == 0.0
    assert epsilon_of(0.0, 1e-5) == 0.0


def test_no_noise_is_worth_nothing() -> None:
    assert epsilon_of(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize("mu", [50.0, 1e3, 1e5])
def test_huge_mu_stays_finite_and_between_its_bounds(mu: float) -> None:
    found = epsilon_of(mu, 1e-5)
    quantile = -float(stats.norm.ppf(1e-5))
    assert mu * mu / 2 + mu * (quantile - 0.1) <= found <= mu * mu / 2 + mu * math.sqrt(2 * math.log(1e5))


def test_mu_so_small_that_floats_cannot_tell_it_from_0_costs_nothing() -> None:
    assert log_delta(1e-17, 0.0) == -math.inf
    assert epsilon_of(1e-17, 1e-300) == 0.0


def test_beyond_the_largest_mu_it_is_the_bound_of_bun_and_steinke() -> None:
    assert epsilon_of(1.5e6, 1e-5) == pytest.approx(1.5e6**2 / 2 + 1.5e6 * math.sqrt(2 * math.log(1e5)), rel=1e-12)


@pytest.mark.parametrize("mu", [1e6, 1e10, 1e52, 1e160])
def test_mu_beyond_what_floats_can_tell_apart_costs_at_least_half_its_square(mu: float) -> None:
    assert epsilon_of(mu, 1e-5) >= mu * mu / 2 + 4 * mu


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 31.0), (1.0, 40.0), (0.5, 16.0), (2.0, 400.0), (0.01, 3.0)])
def test_the_series_far_in_the_tail_agrees_with_scipy(mu: float, epsilon: float) -> None:
    upper, lower = (float(stats.norm.logcdf(side * mu / 2 - epsilon / mu)) for side in (1, -1))
    assert upper < -450  # beyond the threshold of the series
    expected = upper + math.log(-math.expm1(epsilon + lower - upper))
    assert log_delta(mu, epsilon) == pytest.approx(expected, rel=0, abs=2e-8)


def test_epsilon_grows_with_mu_and_falls_with_delta() -> None:
    by_mu = [epsilon_of(mu, 1e-5) for mu in np.geomspace(1e-3, 1e3, 40)]
    by_delta = [epsilon_of(1.0, delta) for delta in np.geomspace(1e-12, 0.1, 20)]
    assert all(a < b for a, b in itertools.pairwise(by_mu))
    assert all(a > b for a, b in itertools.pairwise(by_delta))


def test_epsilon_is_rounded_up() -> None:
    for mu in (0.1, 1.0, 7.0):
        assert log_delta(mu, epsilon_of(mu, 1e-5)) <= math.log(1e-5)


def test_a_guarantee_is_told_in_words_and_none_is_called_none() -> None:
    assert describe_guarantee(4.3772, 1e-5).endswith("epsilon = 4.38 at delta = 1e-05")
    assert describe_guarantee(math.inf, 1e-5).startswith("no differential privacy")
