from __future__ import annotations

from dataclasses import replace

import pytest

from ffalm.theory import bound
from ffalm.theory.constants import PAPER
from ffalm.theory.errata import term_ratios


def test_the_papers_floor_is_117_and_the_corrected_one_139() -> None:
    assert bound.printed_floor(PAPER) == pytest.approx(3.7**2 * 8 + 14.72 / 2)
    assert round(bound.printed_floor(PAPER), 1) == 116.9
    assert bound.floor(PAPER) == pytest.approx(3.7**2 * 8 + 2 * 14.72)


def test_the_printed_bound_tends_to_its_floor_and_not_to_zero() -> None:
    gaps = [bound.printed_bound(PAPER, 10**power) - bound.printed_floor(PAPER) for power in (9, 12, 15)]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[1] / gaps[2] == pytest.approx(100, rel=0.01)  # a thousandfold T, a hundredth: T^(-2/3)


def test_the_terms_of_the_remainder_are_the_closed_forms_that_the_lemmas_give() -> None:
    number, noisy = 10**6, bound.NOISY
    found = bound.remainder(noisy, number)
    power = number ** (2 / 3)
    assert found["dissimilarity"] == pytest.approx(noisy.dissimilarity / noisy.pl)
    assert found["heterogeneity"] == pytest.approx(-2 * noisy.heterogeneity)
    assert found["model noise"] == pytest.approx(2 * noisy.primal_smoothness / (noisy.pl**2 * number))
    assert found["tracking"] == pytest.approx(2 * 18**4 * (1 + 121) * 8**3 / power, rel=1e-3)
    assert found["dual noise"] == pytest.approx(16 * 18**2 * 8 / power, rel=1e-3)


def test_the_printed_terms_are_off_by_these_factors() -> None:
    assert {name: float(f"{ratio:.3g}") for name, ratio in term_ratios().items()} == {
        "model noise": 0.5,
        "drift": 0.25,
        "tracking": 122.0,
        "dual noise": 2.0,
        "dissimilarity": 1.0,
        "heterogeneity": 4.0,
    }


def test_with_several_local_steps_the_printed_weights_do_not_contract() -> None:
    assert bound.contraction(PAPER, 1000, 1) < 1
    assert bound.contraction(PAPER, 1000, 2) == 1
    assert bound.contraction(PAPER, 1000, 5) > 1


def test_the_induction_may_start_where_every_condition_holds() -> None:
    assert bound.first_round(PAPER) == 5472
    assert bound.first_round(replace(PAPER, smoothness=1.0, pl=1.0)) == 23


def test_the_corrected_bound_falls_to_its_floor() -> None:
    ends = [bound.bound(bound.NOISY, 10**power, start=1.0) - bound.floor(bound.NOISY) for power in (9, 12, 15)]
    assert ends[0] > ends[1] > ends[2] > 0
    assert ends[1] / ends[2] == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("round", [1_000, 1_000_000])
def test_the_duals_noise_has_8_in_both_places_where_4_is_printed(round: int) -> None:
    power = round ** (2 / 3)
    scale = 18**2 * 8  # L^2 / mu of the example
    found, printed = bound.remainder(bound.NOISY, round), bound.printed_remainder(bound.NOISY, round)
    assert found["dual noise"] == pytest.approx(8 * scale * (1 / power + 1 / (power - 4)), rel=1e-12)
    assert printed["dual noise"] == pytest.approx(4 * scale * (1 / power + 1 / (power - 4)), rel=1e-12)
