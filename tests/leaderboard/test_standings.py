from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest, ttest_rel

from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import holm, paired_p, standings, totals


def choices(method: str, accuracies: list[float], gap: float = 0.01, degenerate: str = "") -> list[MethodChoice]:
    return [
        MethodChoice("cell", "dpd <= 0.05", method, seed, accuracy, gap, gap <= 0.05, degenerate, method, 0.2)
        for seed, accuracy in enumerate(accuracies)
    ]


def test_holm_multiplies_each_by_how_many_are_left() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 x 0.01, then 2 x 0.03, then at least that
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_paired_test_is_scipys() -> None:
    first, second = [0.81, 0.84, 0.80, 0.83], [0.80, 0.82, 0.81, 0.80]
    expected = ttest_rel(first, second).pvalue
    assert paired_p(dict(enumerate(first)), dict(enumerate(second))) == pytest.approx(expected)


def test_methods_that_are_equal_or_share_one_seed_are_not_told_apart() -> None:
    assert paired_p({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}) == 1.0
    assert paired_p({0: 0.5}, {0: 0.6}) == 1.0


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_the_same_difference_in_every_seed_has_the_p_value_of_the_sign_test(seeds: int) -> None:
    rows = 2370  # one of which the second predicts wrong in every seed: equal but for rounding
    first = {seed: (2100 + 17 * seed) / rows for seed in range(seeds)}
    second = {seed: (2099 + 17 * seed) / rows for seed in range(seeds)}
    assert paired_p(first, second) == pytest.approx(binomtest(seeds, seeds).pvalue)


def test_methods_are_ranked_by_accuracy_and_tied_where_a_test_cannot_tell_them_apart() -> None:
    good, near, far = [0.84, 0.85, 0.86, 0.85], [0.85, 0.84, 0.85, 0.85], [0.80, 0.81, 0.82, 0.80]
    found = standings(choices("far", far) + choices("good", good) + choices("near", near))
    assert [(one.method, one.rank, one.first) for one in found] == [
        ("good", 1, True),
        ("near", 2, True),
        ("far", 3, False),
    ]


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_equal_accuracies_share_the_mean_of_their_places_in_any_order(order: tuple[str, ...]) -> None:
    means = {"a": 0.9, "b": 0.8, "c": 0.8}
    found = standings([choice for name in order for choice in choices(name, [means[name], means[name] + 0.01])])
    assert {one.method: one.rank for one in found} == {"a": 1, "b": 2.5, "c": 2.5}
    best = standings([choice for name in ("b", "c") for choice in choices(name, [0.8, 0.81])])
    assert [(one.rank, one.first) for one in best] == [(1.5, True), (1.5, True)]


def test_a_method_beyond_the_bound_degenerate_or_without_a_model_never_ranks() -> None:
    found = standings(
        choices("fair", [0.80, 0.81])
        + choices("unfair", [0.90, 0.91], gap=0.2)
        + choices("constant", [0.76, 0.76], gap=0.0, degenerate="one label")
        + choices("broken", [0.9, math.nan])
    )
    assert [(one.method, one.rank) for one in found if not one.problem] == [("fair", 1)]
    assert {one.rank for one in found if one.problem} == {3.0}  # places 2, 3 and 4 are shared
    assert {one.method: one.problem for one in found if one.problem} == {
        "constant": "degenerate in 2 of 2 seeds",
        "broken": "no model in 1 of 2 seeds",
        "unfair": "the mean gap is beyond the bound",
    }


def test_totals_count_the_cells_and_average_the_ranks() -> None:
    found = standings(choices("a", [0.80, 0.81, 0.80]) + choices("b", [0.70, 0.71, 0.71]))
    first, second = totals(found)
    assert (first.method, first.cells, first.qualified, first.first, first.rank) == ("a", 1, 1, 1, 1.0)
    assert (second.method, second.first, second.rank) == ("b", 0, 2.0)
    assert first.accuracy == pytest.approx(2.41 / 3)


def test_a_contest_nobody_qualifies_in_has_no_first() -> None:
    found = standings(choices("a", [0.8, 0.8], gap=0.2) + choices("b", [0.8, 0.8], gap=0.3))
    assert [(one.rank, one.first) for one in found] == [(1.5, False), (1.5, False)]
    assert [(one.qualified, one.first) for one in totals(found)] == [(0, 0), (0, 0)]
    assert all(math.isnan(one.accuracy) for one in totals(found))
