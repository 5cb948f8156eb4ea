"""Number by number: what the paper prints of its example, and what it should have printed."""

from __future__ import annotations

import numpy as np
import pytest

from ffalm.theory.constants import PAPER
from ffalm.theory.two_clients import (
    CLIENTS,
    MODELS,
    best_constants,
    curvature,
    gamma,
    gamma_of_the_common_dual,
    primal_risk,
    risk,
    saddles,
    slope,
    stationary,
)


def digits(value: float, count: int) -> float:
    return round(value, count)


@pytest.mark.parametrize(("client", "place", "value"), [(0, 1.6477115, 0.6576446), (1, -1.6600884, 0.6691486)])
def test_each_client_has_the_least_risk_that_the_paper_prints(client: int, place: float, value: float) -> None:
    found = CLIENTS[client].best()
    assert (digits(found[0], 7), digits(found[1], 7)) == (place, value)


def test_the_risks_are_the_papers_formulas() -> None:
    w, dual = np.asarray(0.3), 1.7
    assert CLIENTS[0].value(w, dual) == pytest.approx((0.3 - 1) ** 2 + 2 * np.sin(0.3 - 2) ** 2 - (1.7 - 4) ** 2)
    assert CLIENTS[1].value(w, dual) == pytest.approx((0.3 + 1) ** 2 + 2.1 * np.sin(0.3 + 2) ** 2 - (1.7 + 4) ** 2)
    assert risk(w, dual) == pytest.approx((CLIENTS[0].value(w, dual) + CLIENTS[1].value(w, dual)) / 2)


def test_slopes_and_curvatures_are_the_derivatives() -> None:
    w, step = np.linspace(*MODELS, 101), 1e-6
    assert slope(w) == pytest.approx((primal_risk(w + step) - primal_risk(w - step)) / (2 * step), abs=1e-7)
    assert curvature(w) == pytest.approx((slope(w + step) - slope(w - step)) / (2 * step), abs=1e-7)


def test_the_game_has_two_saddles_and_a_barrier_between_them() -> None:
    worse, barrier, better = stationary()
    assert [point.is_saddle for point in (worse, barrier, better)] == [True, False, True]
    assert (digits(better.model, 7), digits(better.value, 7)) == (0.650928, -13.391511)
    assert (digits(worse.model, 7), digits(worse.value, 7)) == (-0.6337569, -13.3552016)
    assert (digits(barrier.model, 7), digits(barrier.value, 7)) == (-0.0557618, -13.3039624)
    assert (digits(better.curvature, 3), digits(worse.curvature, 3)) == (1.361, 1.127)
    assert saddles() == [better, worse]


def test_the_best_dual_is_zero_whatever_the_model() -> None:
    duals = np.linspace(-5, 5, 1001)
    for model in (-2.0, 0.1, 3.0):
        assert duals[np.argmax(risk(np.asarray(model), duals))] == pytest.approx(0.0)


def test_the_stated_pl_constant_is_too_large_for_both_clients() -> None:
    found = [client.pl_constant() for client in CLIENTS]
    assert [digits(value, 5) for value in found] == [0.05109, 0.03235]
    assert PAPER.pl > max(found)


def test_no_model_of_the_box_violates_the_best_pl_constant() -> None:
    w = np.linspace(*MODELS, 5003)
    for client in CLIENTS:
        above = client.primal(w) - client.best()[1]
        assert (client.slope(w) ** 2 / 2 >= client.pl_constant() * (1 - 1e-6) * above - 1e-12).all()


def test_the_other_constants_are_valid_but_loose() -> None:
    tight = best_constants()
    assert (tight.concavity, digits(tight.smoothness, 9)) == (2.0, 6.2)
    assert (digits(tight.gradient, 3), digits(tight.dissimilarity, 3)) == (8.197, 12.615)
    assert digits(tight.dissimilarity**0.5, 3) == 3.552
    assert PAPER.concavity < tight.concavity
    assert PAPER.smoothness > tight.smoothness
    assert PAPER.gradient > tight.gradient
    assert PAPER.dissimilarity > tight.dissimilarity


def test_the_printed_gamma_forgot_the_clients_shares() -> None:
    assert digits(gamma(), 4) == -14.0549
    assert digits(gamma(weighted=False), 4) == -14.7183
    assert round(gamma(weighted=False), 2) == PAPER.heterogeneity


def test_gamma_changes_sign_with_the_common_dual() -> None:
    assert gamma_of_the_common_dual() == pytest.approx(gamma() + 16.0)
