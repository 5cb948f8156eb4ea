"""Group thresholds: hand-worked numbers, brute force, confidence margins, and randomised mixtures."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from ffalm.fairness import ScoreHistogram
from ffalm.targets import Target
from ffalm.targets.margins import confidence_end
from ffalm.targets.randomised import mixed_thresholds
from ffalm.targets.rate_table import Costs, RateTable
from ffalm.targets.thresholds import confident, group_thresholds, single_threshold

#: Four bins; the favourable and unfavourable rows of two groups, 40 in all.
HAND = ScoreHistogram(
    torch.tensor([[[6, 8], [0, 1]], [[3, 4], [1, 1]], [[1, 2], [3, 2]], [[0, 1], [6, 1]]]).unsqueeze(1)
)


def random_histogram(seed: int, groups: int, bins: int = 6, most: int = 6) -> ScoreHistogram:
    draws = np.random.default_rng(seed)
    return ScoreHistogram(torch.from_numpy(draws.integers(0, most, (bins, 1, 2, groups))))


def test_the_most_accurate_single_threshold() -> None:
    assert single_threshold(RateTable.of(HAND, None), 2) == 2
    assert HAND.tally([2, 2]).accuracy() == pytest.approx(0.825)


def test_unconstrained_thresholds_that_tie_stay_at_the_single_one() -> None:
    """(2, 3) and (2, 4) are as accurate as (2, 2)."""
    assert group_thresholds(RateTable.of(HAND, None), 2) == [2, 2]
    assert HAND.tally([2, 4]).accuracy() == HAND.tally([2, 2]).accuracy()


@pytest.mark.parametrize(
    ("target", "edges", "accuracy", "dpd", "eod"),
    [
        ("dpd <= 0.1", [3, 2], 0.775, 0.0, 0.0),
        ("eod <= 0.2", [3, 2], 0.775, 0.0, 0.0),
        ("dpd <= 0.2", [2, 2], 0.825, 0.2, 0.3),
    ],
)
def test_hand_worked_group_thresholds(target: str, edges: list[int], accuracy: float, dpd: float, eod: float) -> None:
    assert group_thresholds(RateTable.of(HAND, Target.parse(target)), 2) == edges
    found = HAND.tally(edges)
    assert [found.accuracy(), found.dpd(), found.eod()] == pytest.approx([accuracy, dpd, eod])


def test_a_pair_of_thresholds_has_its_hand_worked_metrics() -> None:
    found = HAND.tally([2, 1])
    assert [found.accuracy(), found.dpd(), found.eod()] == pytest.approx([0.75, 0.05, 0.1])


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize(
    "target",
    [
        "dpd <= 0.1",
        "eod <= 0.2",
        "equalized_odds <= 0.2",
        "impact_ratio >= 0.8",
        "accuracy_parity <= 0.05",
        "dpd <= 0.1, eod <= 0.1",
        "dpd <= 0.1, accuracy_parity <= 0.1",
    ],
)
def test_the_search_finds_what_brute_force_finds(target: str, groups: int) -> None:
    aim = Target.parse(target)
    for seed in range(6 - groups):
        histogram = random_histogram(seed, groups, bins=4)
        best = -1.0
        for edges in itertools.product(range(5), repeat=groups):
            metrics = histogram.tally(list(edges)).metrics()
            if aim.meets(metrics):
                best = max(best, metrics["accuracy"])
        found = group_thresholds(RateTable.of(histogram, aim), 2)
        assert (histogram.tally(found).accuracy() if found else -1.0) == pytest.approx(best)


def test_costs_move_the_single_threshold() -> None:
    """Where a wrong favourable prediction costs nothing, everybody is predicted favourable."""
    assert single_threshold(RateTable.of(HAND, None, Costs(0, 1)), 2) == 0
    assert single_threshold(RateTable.of(HAND, None, Costs(1, 0)), 2) == 4


@pytest.mark.parametrize("groups", [2, 3, 5, 14])
def test_a_margin_leaves_the_confidence_bound_within_the_target(groups: int) -> None:
    histogram = random_histogram(0, groups, bins=40, most=30 * groups)
    table = RateTable.of(histogram, Target.parse("dpd <= 0.08"))
    loose, strict = group_thresholds(table, 20), group_thresholds(table, 20, 0.95)
    assert loose is not None
    assert strict is not None
    assert confident(table, strict, 0.95)
    assert not confident(table, loose, 0.95)
    assert histogram.tally(strict).accuracy() <= histogram.tally(loose).accuracy()


def rows_of_three_groups(seed: int, bins: int) -> NDArray[np.int64]:
    """Counts by (bin, label, group) of 900 or 3,000 rows."""
    draws = np.random.default_rng(seed)
    rows = int(draws.choice([900, 3000]))
    group = draws.choice(3, rows, p=draws.dirichlet(5 * np.ones(3)))
    label = (draws.random(rows) < 0.4 + 0.2 * (group == 0)).astype(int)
    scores = draws.normal(size=rows) + 1.6 * label - 0.8 + 0.4 * (group == 2)
    counts = np.zeros((bins, 2, 3), dtype=np.int64)
    np.add.at(counts, (np.clip((scores + 4) / 8 * bins, 0, bins - 1).astype(int), label, group), 1)
    return counts


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(("metric", "bound"), [("dpd", 0.1), ("eod", 0.1), ("equalized_odds", 0.15)])
def test_no_choice_of_three_groups_with_this_confidence_is_more_accurate(
    metric: str, bound: float, level: float
) -> None:
    """All 25^3 combinations, each gap by Newcombe's bound from the roots of Wilson's equation."""
    bins, z = 24, NormalDist().inv_cdf(level)
    combinations = np.array(list(itertools.product(range(bins + 1), repeat=3)))
    for seed in range(4):
        counts = rows_of_three_groups(seed, bins)
        above = np.array([counts[edge:].sum(0) for edge in range(bins + 1)])  # (edge, label, group)
        right = sum((above[:, 1, g] + above[0, 0, g] - above[:, 0, g])[combinations[:, g]] for g in range(3))
        within = np.ones(len(combinations), dtype=bool)
        sets = {"dpd": [above.sum(1)], "eod": [above[:, 1]], "equalized_odds": [above[:, 0], above[:, 1]]}
        for hits in sets[metric]:
            trials = hits[0].astype(float)
            rates = hits / trials
            middle, width = (
                rates + z * z / (2 * trials),
                z * np.sqrt((rates - rates**2) / trials + (z / trials) ** 2 / 4),
            )
            low, high = (middle - width) / (1 + z * z / trials), (middle + width) / (1 + z * z / trials)
            for one, other in itertools.permutations(range(3), 2):
                p, q = rates[combinations[:, one], one], rates[combinations[:, other], other]
                up, down = high[combinations[:, one], one] - p, q - low[combinations[:, other], other]
                within &= p - q + np.sqrt(up**2 + down**2) <= bound
        table = RateTable.of(ScoreHistogram(torch.from_numpy(counts[:, None])), Target.parse(f"{metric} <= {bound}"))
        found = group_thresholds(table, bins // 2, level)
        assert (found is None) == (not within.any())
        if found is not None:
            assert within[(combinations == found).all(1)].all()
            assert right[(combinations == found).all(1)] == right[within].max()


@pytest.mark.parametrize("target", ["accuracy_parity <= 0.05", "dpd <= 0.1, accuracy_parity <= 0.05"])
def test_accuracies_that_are_nowhere_equal_have_a_margin_too(target: str) -> None:
    """Group c is harder to predict than the others: thresholds make no two of three accuracies equal to the row."""
    aim, draws = Target.parse(target), torch.Generator().manual_seed(0)
    y, group = torch.randint(0, 2, (30_000,), generator=draws), torch.randint(0, 3, (30_000,), generator=draws)
    strength = torch.tensor([1.0, 0.9, 0.8])[group]
    scores = torch.randn(30_000, generator=draws) + strength * (2.0 * y - 1)
    histogram = ScoreHistogram.of(scores, torch.zeros_like(y), y, group, (2, 3), 1)
    table = RateTable.of(histogram, aim)
    loose, strict = (group_thresholds(table, 128, level) for level in (0.5, 0.95))
    assert loose is not None and not confident(table, loose, 0.95)
    assert group_thresholds(table.stricter(0.0), 128) is None
    assert strict is not None and confident(table, strict, 0.95)
    assert 0.7 < histogram.tally(strict).accuracy() <= histogram.tally(loose).accuracy()
    few = replace(histogram, counts=histogram.counts // 100)
    assert group_thresholds(RateTable.of(few, Target.parse("accuracy_parity <= 0.01")), 128, 0.95) is None


@pytest.mark.parametrize("target", ["dpd <= 0.1", "eod <= 0.1", "accuracy_parity <= 0.1", "impact_ratio >= 0.8"])
def test_confidence_ends_are_those_of_the_intervals(target: str) -> None:
    """The search's vectorised bounds and the intervals of reports are two implementations of one formula."""
    histogram = random_histogram(1, 3, bins=10, most=40)
    (constraint,) = RateTable.of(histogram, Target.parse(target)).constraints
    edges, bound = [5, 4, 6], constraint.bound
    end = confidence_end(constraint, constraint.hits[range(3), edges], 0.95)
    assert float(end) == pytest.approx(bound.worst_end(histogram.tally(edges).interval(bound.metric, 0.9)))


def test_randomised_thresholds_reach_equalised_odds_that_fixed_ones_cannot() -> None:
    """The most accurate fixed pair within 0.1 is the trivial one; mixtures do better."""
    table = RateTable.of(HAND, Target.parse("equalized_odds <= 0.1"))
    fixed, weights = group_thresholds(table, 2), mixed_thresholds(table)
    assert fixed == [4, 4]
    assert weights is not None
    mixed = HAND.mixed_tally(torch.from_numpy(weights.T))
    assert mixed.equalized_odds() <= 0.1 + 1e-9
    assert mixed.accuracy() > HAND.tally(fixed).accuracy() + 0.05


@pytest.mark.parametrize("target", ["dpd <= 0.05", "impact_ratio >= 0.9", "accuracy_parity <= 0.02"])
def test_mixtures_are_at_least_as_accurate_as_fixed_thresholds(target: str) -> None:
    aim = Target.parse(target)
    for seed in range(4):
        histogram = random_histogram(seed, 3, bins=12, most=30)
        table = RateTable.of(histogram, aim)
        fixed, weights = group_thresholds(table, 6), mixed_thresholds(table)
        assert weights is not None
        mixed = histogram.mixed_tally(torch.from_numpy(weights.T))
        assert aim.excess(mixed.metrics()) < 1e-7
        assert fixed is None or mixed.accuracy() >= histogram.tally(fixed).accuracy() - 1e-9


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_a_label_that_no_row_has_constrains_nothing_whatever_the_number_of_groups(groups: int, level: float) -> None:
    """The true positive rates of equalised odds are not known; those of the other label are all that is compared."""
    counts = torch.ones(4, 1, 2, groups, dtype=torch.int64)
    counts[:, :, 1] = 0
    histogram = ScoreHistogram(50 * counts)
    for target in ("equalized_odds <= 0.1", "eod <= 0.1"):
        assert group_thresholds(RateTable.of(histogram, Target.parse(target)), 4, level) == [4] * groups


def best_mixture(counts: NDArray[np.int64], metric: str, epsilon: float) -> float:
    """The most correct rows that mixtures reach, by a programme of its own: every pair of groups is compared.

    Counts are by (bin, label, group); a group without rows that a rate is about is in no pair.
    """
    edges, groups = len(counts) + 1, counts.shape[2]
    above = np.array([counts[edge:].sum(0) for edge in range(edges)])  # (edge, label, group)
    total = above[0]
    right = above[:, 1] + (total[0] - above[:, 0])
    sets = {"dpd": [(above.sum(1), total.sum(0))], "eod": [(above[:, 1], total[1])]}
    sets["equalized_odds"] = [(above[:, label], total[label]) for label in range(2)]
    rows, limits = [], []
    for hits, trials in sets[metric]:
        for first, second in itertools.permutations(np.flatnonzero(trials), 2):
            row = np.zeros((groups, edges))
            row[first], row[second] = hits[:, first] / trials[first], -hits[:, second] / trials[second]
            rows.append(row.ravel())
            limits.append(epsilon)
    found = linprog(
        -right.T.ravel(),
        A_ub=np.array(rows) if rows else None,
        b_ub=np.array(limits) if rows else None,
        A_eq=np.kron(np.eye(groups), np.ones(edges)),
        b_eq=np.ones(groups),
    )
    return -float(found.fun)


@pytest.mark.parametrize("metric", ["dpd", "eod", "equalized_odds"])
@pytest.mark.parametrize("lacks", [None, (slice(None), slice(None)), (slice(None), 1), (slice(None), 0)])
def test_mixtures_are_the_best_of_another_programme_where_groups_lack_rows(metric: str, lacks: Any) -> None:
    for seed in range(3):
        counts = np.random.default_rng(seed).integers(0, 12, (5, 2, 3))
        if lacks is not None:
            counts[(*lacks, 1)] = 0
        histogram = ScoreHistogram(torch.from_numpy(counts[:, None]))
        weights = mixed_thresholds(RateTable.of(histogram, Target.parse(f"{metric} <= 0.04")))
        assert weights is not None
        right = histogram.mixed_tally(torch.from_numpy(weights.T)).confusion.diagonal(dim1=0, dim2=1).sum()
        assert float(right) == pytest.approx(best_mixture(counts, metric, 0.04), rel=1e-7)


def test_mixtures_within_a_ratio_select_somebody() -> None:
    """Selecting nobody is the most accurate, 141 of 160, and leaves no ratio; fixed thresholds select everybody.

    From the third bin up the rates are m = 8 / 93 and 10 / 67, three of the eight and four of the ten rightly. Rates
    must be from 0.8 m to m or above; the best are 0.8 m twice: 0.8 times 2 and 0.8 m 67 / 10 times 2 rows fewer.
    """
    counts = torch.tensor([[[60, 30], [2, 3]], [[20, 20], [3, 4]], [[5, 6], [3, 4]]]).unsqueeze(1)
    histogram = ScoreHistogram(counts)
    table = RateTable.of(histogram, Target.parse("impact_ratio >= 0.8"))
    assert group_thresholds(table, 1) == [0, 0]
    weights = mixed_thresholds(table)
    assert weights is not None
    found = histogram.mixed_tally(torch.from_numpy(weights.T)).metrics()
    assert found["impact_ratio"] == pytest.approx(1.0)
    assert found["accuracy"] == pytest.approx((141 - 2 * 0.8 - 2 * 0.8 * 8 / 93 * 67 / 10) / 160)
