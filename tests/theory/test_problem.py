"""The problem on which the rate is measured must meet every assumption, or the measurement would say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ffalm.theory.problem import CLIENTS, CONCAVITY, DUALS, MODELS, Problem, hill, hill_slope, tilted_pl

LEVELS = (0.0, 0.5, 1.0)


def test_the_model_risk_is_not_convex() -> None:
    x, step = np.linspace(-3, 3, 1001), 1e-4
    assert ((hill_slope(x + step) - hill_slope(x - step)) / (2 * step)).min() < -0.7


def test_slopes_are_the_derivatives() -> None:
    x, step = np.linspace(-3, 3, 101), 1e-6
    assert hill_slope(x) == pytest.approx((hill(x + step) - hill(x - step)) / (2 * step), abs=1e-8)
    problem, w = Problem(0.7), np.array([0.4, -1.1])
    for axis in range(2):
        nudge = step * np.eye(2)[axis]
        numeric = (problem.primal_risk(w + nudge) - problem.primal_risk(w - nudge)) / (2 * step)
        assert problem.primal_slope(w)[axis] == pytest.approx(numeric, abs=1e-7)


def test_the_pl_constant_is_positive_for_the_tilts_that_occur_and_gone_for_larger_ones() -> None:
    assert tilted_pl(0.5) == pytest.approx(0.1776, abs=1e-3)
    assert tilted_pl(1.5) < 1e-4


@pytest.mark.parametrize("level", LEVELS)
def test_every_assumption_holds_on_random_points_of_the_box(level: float) -> None:
    problem, constants = Problem(level), Problem(level).constants()
    draw = np.random.default_rng(0)
    models, duals = draw.uniform(*MODELS, (2000, 1, 2)), draw.uniform(*DUALS, (2000, 1, 1))
    slopes = hill_slope(models - problem.centres) + duals * problem.couplings
    squares = (slopes**2).sum(-1)
    assert np.sqrt(squares).max() <= constants.gradient + 1e-9
    mean = (slopes.mean(1) ** 2).sum(-1)
    assert (squares.mean(1) <= constants.stretch * mean + 1.01 * constants.dissimilarity + 1e-9).all()
    values = hill(models - problem.centres).sum(-1) + (duals * problem.couplings * models).sum(-1)
    grid = np.linspace(-5, 5, 2001)
    for client in range(CLIENTS):
        parts = hill(grid[:, None, None] - problem.centres[client]) + grid[:, None, None] * (
            duals[:, 0] * problem.couplings[client]
        )
        least = parts.min(0).sum(-1)
        assert (squares[:, client] / 2 >= constants.pl * (values[:, client] - least) - 1e-4).all()


@pytest.mark.parametrize("level", LEVELS)
def test_the_best_dual_is_inside_its_bounds_at_the_solution_and_is_best(level: float) -> None:
    problem = Problem(level)
    w = np.array([0.95, -0.35])
    best = float(problem.best_dual(w))
    assert DUALS[0] < best < DUALS[1]
    violation = float(w @ problem.couplings.mean(0) - problem.offsets.mean())
    duals = np.linspace(*DUALS, 20_001)
    assert duals[np.argmax(duals * violation - CONCAVITY / 2 * duals**2)] == pytest.approx(best, abs=1e-4)


def test_equal_clients_have_no_heterogeneity_and_unequal_ones_more_and_more() -> None:
    found = [Problem(level).constants() for level in LEVELS]
    assert found[0].dissimilarity == pytest.approx(0.0, abs=1e-9)
    assert found[0].heterogeneity == pytest.approx(0.0, abs=1e-12)
    assert found[0].dissimilarity < found[1].dissimilarity < found[2].dissimilarity
    assert found[0].heterogeneity < found[1].heterogeneity < found[2].heterogeneity


@pytest.mark.parametrize("level", LEVELS)
def test_no_point_of_the_box_is_below_the_least_risk_and_the_primal_risk_has_the_pl_property(level: float) -> None:
    problem = Problem(level)
    points = np.random.default_rng(1).uniform(*MODELS, (20_000, 2))
    assert problem.primal_risk(points).min() >= problem.least
    assert problem.primal_pl() > 0.25
