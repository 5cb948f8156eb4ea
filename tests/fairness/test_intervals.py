"""Confidence intervals against published tables, exact coverage and the normal approximation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ffalm import metrics
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.fairness.intervals import newcombe, ratio_interval, ratio_low, wilson


def groups(hits: Sequence[int], sizes: Sequence[int]) -> Tally:
    """Rows of label 1, of which so many are predicted 1, in groups of these sizes."""
    confusion = torch.zeros(2, 2, len(sizes), dtype=torch.int64)
    confusion[1, 1] = torch.tensor(hits)
    confusion[0, 1] = torch.tensor(sizes) - torch.tensor(hits)
    return Tally(confusion, torch.zeros(2, len(sizes), dtype=torch.float64))


def binomial(hits: int, trials: int, rate: float) -> float:
    """The chance of so many hits."""
    return float(math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17:857 (1998), table I, score method without continuity correction."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5.1e-5)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombe_gives_the_published_intervals(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    """Newcombe, Statistics in Medicine 17:873 (1998), table II, method 10."""
    assert newcombe(first, second) == pytest.approx((low, high), abs=5.1e-5)


def test_no_trials_have_no_interval() -> None:
    assert all(math.isnan(end) for end in (*wilson(0, 0), *newcombe((0, 0), (3, 4)), *newcombe((3, 4), (0, 0))))


def test_the_interval_of_a_ratio_worked_out_by_hand() -> None:
    """Where all are selected, Wilson's lower limit is n / (n + z^2), and the ratio's ends are these limits."""
    z2 = 1.6448536269514722**2
    assert ratio_interval((5, 5), (100, 100), 0.9) == pytest.approx((5 / (5 + z2), (100 + z2) / 100))
    (low, high), (others_low, others_high) = wilson(40, 100), wilson(50, 100)
    near, far = low * (0.8 - low), others_high * (1 - others_high)
    upper = high * (0.8 - high), others_low * (1 - others_low)
    expected = (
        (0.2 - math.sqrt(0.2**2 - near * far)) / far,
        (0.2 + math.sqrt(0.2**2 - upper[0] * upper[1])) / upper[1],
    )
    assert ratio_interval((40, 100), (50, 100)) == pytest.approx(expected)
    certain = ratio_interval((40, 100), (5e14, 1e15))  # a rate that is known: Wilson's limits over it
    assert certain == pytest.approx((low / 0.5, high / 0.5), rel=1e-6)


def test_the_interval_of_a_ratio_of_nobody_is_open() -> None:
    assert all(math.isnan(end) for end in (*ratio_interval((0, 0), (3, 4)), *ratio_interval((3, 4), (0, 0))))
    assert ratio_interval((0, 10), (0, 20)) == (0.0, math.inf)
    low, high = ratio_interval((0, 10), (10, 20))
    assert low == 0 and wilson(0, 10)[1] / 0.5 < high < 1
    low, high = ratio_interval((10, 20), (0, 10))
    assert 1 < low < 0.5 / wilson(0, 10)[1] and high == math.inf


def missed(sizes: tuple[int, int], rates: tuple[float, float]) -> float:
    """The chance that the one-sided 95 % bound is above the true ratio, summed over every outcome of two groups."""
    hits = np.meshgrid(*(np.arange(size + 1) for size in sizes), indexing="ij")
    ends = [np.array([wilson(k, size, 0.9) for k in range(size + 1)]).T for size in sizes]
    shares = [own / size for own, size in zip(hits, sizes, strict=True)]
    low = ratio_low(shares[0], ends[0][0][hits[0]], shares[1], ends[1][1][hits[1]])
    one, other = (
        np.array([binomial(k, size, rate) for k in range(size + 1)]) for size, rate in zip(sizes, rates, strict=True)
    )
    return float(np.outer(one, other)[low > rates[0] / rates[1] + 1e-12].sum())


def test_the_bound_of_a_ratio_misses_the_truth_about_as_often_as_it_says() -> None:
    """Katz's misses 0.31, 0.18 and 0.08 of the first three, 0.09 on average and up to 0.82 of the others."""
    assert [missed((size, 300), (0.79, 1.0)) for size in (5, 20, 50)] == pytest.approx([0, 0.0566, 0.0337], abs=1e-4)
    rates = [0.5, 0.7, 0.8, 0.9, 0.98, 1.0]
    found = [
        missed(sizes, (one, other))
        for sizes in ((20, 20), (20, 100), (100, 20), (50, 50))
        for one in rates
        for other in rates
        if one <= other
    ]
    assert 0.03 < np.mean(found) < 0.05 and max(found) < 0.1
    small = [missed(sizes, (0.1, 0.2)) for sizes in ((20, 20), (50, 100), (100, 50))]
    assert max(small) < 0.08


def test_the_smallest_of_several_ratios_is_covered() -> None:
    sizes, rates = (60, 200, 120), (0.95, 0.99, 0.9)
    drawn = np.random.default_rng(0).binomial(sizes, rates, size=(400, 3))
    found = [groups(hits.tolist(), sizes).interval("impact_ratio") for hits in drawn]
    assert np.mean([low <= 0.9 / 0.99 <= high for low, high in found]) >= 0.93
    assert all(0 <= low <= high <= 1 for low, high in found)


def test_a_higher_level_gives_a_wider_interval() -> None:
    tally = groups((30, 45), (60, 60))
    widths = [high - low for low, high in (tally.interval("dpd", level) for level in (0.5, 0.8, 0.95, 0.99))]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_dpd_and_eod_have_newcombes_interval_of_the_absolute_difference() -> None:
    tally = groups((56, 48), (70, 80))
    assert tally.interval("dpd") == pytest.approx((0.0524, 0.3339), abs=5.1e-5)
    assert tally.interval("eod") == pytest.approx((0.0524, 0.3339), abs=5.1e-5)
    swapped = groups((48, 56), (80, 70))
    assert swapped.interval("dpd") == pytest.approx(tally.interval("dpd"), abs=1e-12)


def test_an_interval_that_reaches_over_zero_starts_at_zero() -> None:
    low, high = groups((5, 0), (56, 29)).interval("dpd")
    assert low == 0
    assert high == pytest.approx(0.1926, abs=5.1e-5)


def test_accuracy_has_wilsons_interval() -> None:
    tally = metrics.tally([1] * 263, [1] * 81 + [0] * 182, [0, 1] * 131 + [0])
    assert tally.interval("accuracy") == pytest.approx((0.2553, 0.3662), abs=5.1e-5)


@pytest.mark.parametrize(("rate_0", "rate_1"), [(0.1, 0.4), (0.5, 0.5), (0.05, 0.1), (0.9, 0.3)])
def test_the_interval_of_dpd_covers_the_truth_at_its_level(rate_0: float, rate_1: float) -> None:
    """Not simulated but summed over every possible outcome of two small groups."""
    sizes, truth, covered = (18, 25), abs(rate_0 - rate_1), 0.0
    for k_0 in range(sizes[0] + 1):
        for k_1 in range(sizes[1] + 1):
            chance = binomial(k_0, sizes[0], rate_0) * binomial(k_1, sizes[1], rate_1)
            if chance > 1e-7:
                low, high = groups((k_0, k_1), sizes).interval("dpd")
                covered += chance * (low - 1e-12 <= truth <= high + 1e-12)
    assert 0.93 <= covered <= 0.998


def test_the_bootstrap_agrees_with_the_normal_approximation_on_many_rows() -> None:
    """The joint gap of groups of fixed size is (k_0 - k_1) / n, whose variance is known."""
    hits, sizes = (1200, 900), (2000, 3000)
    tally = groups(hits, sizes)
    share = np.array(hits) / np.array(sizes)
    deviation = math.sqrt(float((np.array(sizes) * share * (1 - share)).sum())) / sum(sizes)
    low, high = tally.interval("joint_dpd")
    assert (low + high) / 2 == pytest.approx(300 / 5000, abs=deviation / 8)
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.08)


@pytest.mark.parametrize(("level", "z"), [(0.95, 1.95996), (0.8, 1.28155)])
def test_each_end_of_the_bootstrap_interval_is_its_own_percentile(level: float, z: float) -> None:
    hits, sizes = (12_000, 9_000), (20_000, 30_000)
    share = np.array(hits) / np.array(sizes)
    deviation = math.sqrt(float((np.array(sizes) * share * (1 - share)).sum())) / sum(sizes)
    low, high = groups(hits, sizes).interval("joint_dpd", level)
    assert (3_000 / 50_000 - low) / deviation == pytest.approx(z, abs=0.15)
    assert (high - 3_000 / 50_000) / deviation == pytest.approx(z, abs=0.15)


def test_a_rate_that_is_1_in_every_group_still_leaves_room_for_a_gap() -> None:
    everybody = metrics.tally([1] * 40, [1] * 40, [0, 1] * 20)
    for metric in ("predictive_parity", "eod"):
        assert everybody.metrics()[metric] == 0
        assert everybody.interval(metric) == pytest.approx((0, newcombe((20, 20), (20, 20))[1]))


@pytest.mark.parametrize("metric", ["equalized_odds", "worst_group_accuracy", "predictive_parity", "joint_eod"])
def test_intervals_hold_the_value_and_shrink_with_more_rows(metric: str) -> None:
    draws = np.random.default_rng(0)
    y, s = draws.integers(0, 2, 300), draws.integers(0, 3, 300)
    prediction = np.where(draws.random(300) < 0.6 + 0.1 * s, y, 1 - y)
    few = metrics.tally(y, prediction, s)
    many = Tally(few.confusion * 25, few.loss)
    for tally in (few, many):
        low, high = tally.interval(metric)
        assert 0 <= low <= tally.metrics()[metric] <= high <= 1
    widths = [high - low for low, high in (few.interval(metric), many.interval(metric))]
    assert widths[1] == pytest.approx(widths[0] / 5, rel=0.35)


def test_a_bootstrapped_interval_is_the_same_each_time() -> None:
    tally = metrics.tally([0, 1] * 30, [0, 1, 1] * 20, [0, 0, 1, 1, 2, 2] * 10)
    assert tally.interval("joint_eod") == tally.interval("joint_eod")


@pytest.mark.parametrize(
    ("rates", "sizes"),
    [
        ((0.3, 0.3, 0.3), (100, 100, 100)),
        ((0.2, 0.4, 0.6), (100, 100, 100)),
        ((0.3, 0.3, 0.3, 0.3, 0.6), (100, 100, 100, 100, 100)),
        ((0.2, 0.3, 0.4, 0.5, 0.95), (200, 100, 50, 20, 10)),
        ((0.3, 0.5, 0.5, 0.5, 0.5), (2000, 200, 200, 200, 200)),
    ],
)
def test_the_interval_of_many_groups_covers_the_largest_difference_also_where_there_is_none(
    rates: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    truth = max(rates) - min(rates)
    drawn = np.random.default_rng(0).binomial(sizes, rates, size=(300, len(sizes)))
    found = [groups(hits.tolist(), sizes).interval("dpd") for hits in drawn]
    covered = np.mean([low - 1e-12 <= truth <= high + 1e-12 for low, high in found])
    assert covered >= 0.92


def test_the_interval_of_three_groups_can_be_worked_out_from_those_of_two() -> None:
    shares = [(56, 70), (48, 80), (30, 60)]
    pairs = [(shares[one], shares[other]) for one, other in ((0, 1), (0, 2), (1, 2))]
    low, high = groups([56, 48, 30], [70, 80, 60]).interval("dpd")
    assert low == pytest.approx(max(newcombe(*pair, 1 - 0.05 / 3)[0] for pair in pairs), abs=1e-12)
    assert high == pytest.approx(max(newcombe(*pair)[1] for pair in pairs), abs=1e-12)


def test_the_interval_of_the_smallest_ratio_of_three_groups_can_be_worked_out_from_those_of_two() -> None:
    shares = [(56, 70), (48, 80), (30, 60)]
    pairs = list(itertools.permutations(shares, 2))
    low, high = groups([56, 48, 30], [70, 80, 60]).interval("impact_ratio")
    assert low == pytest.approx(min(ratio_interval(*pair, 0.95)[0] for pair in pairs), abs=1e-12)
    assert high == pytest.approx(min(ratio_interval(*pair, 1 - 0.05 / 3)[1] for pair in pairs), abs=1e-12)
    assert high < 1


@pytest.mark.parametrize(
    ("rates", "sizes"),
    [
        (((0.3, 0.3), (0.7, 0.7)), (200, 200)),
        (((0.3, 0.4), (0.7, 0.8)), (200, 200)),
        (((0.3, 0.3, 0.3), (0.7, 0.7, 0.7)), (100, 100, 40)),
        (((0.1, 0.1, 0.2), (0.7, 0.9, 0.8)), (100, 100, 40)),
    ],
)
def test_the_worst_over_labels_or_groups_is_covered(
    rates: tuple[tuple[float, ...], tuple[float, ...]], sizes: tuple[int, ...]
) -> None:
    """Rates of predicting 1 by label and group, with as many rows of either label in a group."""
    truths = {
        "equalized_odds": max(max(of_label) - min(of_label) for of_label in rates),
        "worst_group_accuracy": min((1 - wrong + right) / 2 for wrong, right in zip(*rates, strict=True)),
    }
    chosen = np.random.default_rng(0).binomial(sizes, rates, size=(300, 2, len(sizes)))
    for metric, truth in truths.items():
        tallies = (torch.from_numpy(np.stack([np.array(sizes) - one, one])) for one in chosen)
        found = [Tally(counts, torch.zeros(2, len(sizes))).interval(metric) for counts in tallies]
        covered = np.mean([low - 1e-12 <= truth <= high + 1e-12 for low, high in found])
        assert covered >= 0.92


def test_a_small_group_whose_rows_are_all_alike_leaves_doubt() -> None:
    low, high = groups([3, 60, 80], [3, 100, 100]).interval("dpd")
    assert low < 0.1
    assert high > 0.4


def test_an_undefined_metric_has_an_undefined_interval() -> None:
    tally = metrics.tally([0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1])
    assert all(math.isnan(end) for end in tally.interval("eod"))


def test_an_empty_group_is_no_obstacle_to_a_metric_that_is_defined_without_it() -> None:
    tally = metrics.tally([0, 1, 1, 0] * 10, [1, 1, 0, 0] * 10, [0] * 40)
    low, high = tally.interval("joint_dpd")
    assert 0 <= low <= tally.metrics()["joint_dpd"] <= high <= 1


@pytest.mark.parametrize("metric", ["joint_dpd", "joint_eod"])
def test_counts_that_noise_left_just_below_a_whole_number_are_resampled_in_full(metric: str) -> None:
    whole = metrics.tally([0, 1] * 30, [0, 1, 1] * 20, [0, 0, 1, 1] * 15)
    noisy = Tally(whole.confusion.double() * (1 - 1e-15), whole.loss)
    assert noisy.interval(metric) == whole.interval(metric)


def test_rows_too_few_to_be_resampled_have_no_interval() -> None:
    hardly = Tally(torch.full((2, 2, 2), 0.1, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    assert all(math.isnan(end) for end in hardly.interval("joint_dpd"))


@pytest.mark.parametrize(("metric", "level"), [("loss", 0.95), ("loss_gap", 0.95), ("dpq", 0.95), ("dpd", 1.0)])
def test_intervals_that_cannot_be_had_are_refused(metric: str, level: float) -> None:
    with pytest.raises(UserError):
        groups((3, 4), (9, 9)).interval(metric, level)
