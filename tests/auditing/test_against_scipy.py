"""Every number of an audit from the rows anew: shares by masks, intervals by scipy, areas by all pairs of rows.

Differences have Newcombe's interval, ratios Donner and Zou's, each from the two Wilson intervals; of the largest
difference the lower end is corrected for the number of pairs. Nothing of the package's formulas is used.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

import ffalm
from ffalm.auditing.audit_facts import Estimate
from ffalm.auditing.counted_groups import CountedGroups
from ffalm.fairness import Tally

Share = tuple[float, float]
Ends = tuple[float, float]
Flags = NDArray[np.bool_]
UNDEFINED = (math.nan, math.nan)
GAPS = ("dpd", "eod", "equalized_odds", "predictive_parity", "accuracy_parity")


def rows_of(seed: int) -> tuple[Flags, NDArray[np.float64], NDArray[Any]]:
    """Few or many rows of two to four groups, some unknown, with tied scores and rates near 0 and 1."""
    draws = np.random.default_rng(seed)
    rows = int(draws.choice([20, 60, 300]))
    groups = np.array([f"g{one}" for one in draws.integers(0, draws.integers(2, 5), rows)], dtype=object)
    if seed % 3 == 0:
        groups[draws.random(rows) < 0.1] = None
    wanted = draws.random(rows) < draws.choice([0.1, 0.5, 0.9])
    scores = np.clip(draws.normal(0.5, 0.25, rows) + 0.1 * wanted, 0, 0.49 if seed % 10 == 7 else 1)  # or none selected
    return wanted, np.round(scores, int(draws.choice([1, 2, 8]))), groups


def wilson(share: Share, level: float) -> Ends:
    if share[1] == 0:
        return UNDEFINED
    found = stats.binomtest(int(share[0]), int(share[1])).proportion_ci(level, method="wilson")
    return found.low, found.high


def rate(share: Share) -> float:
    return share[0] / share[1] if share[1] else math.nan


def difference(first: Share, second: Share, level: float) -> Ends:
    (low, high), (others_low, others_high) = wilson(first, level), wilson(second, level)
    p, q = rate(first), rate(second)
    return (
        p - q - math.sqrt((p - low) ** 2 + (others_high - q) ** 2),
        p - q + math.sqrt((high - p) ** 2 + (q - others_low) ** 2),
    )


def ratio(first: Share, second: Share, level: float) -> Ends:
    """Where (p - R q) equals its own distance to the Wilson ends: the roots of a quadratic in R."""
    (low, high), (others_low, others_high) = wilson(first, level), wilson(second, level)
    p, q = rate(first), rate(second)

    def root(own: float, other: float, sign: int) -> float:
        a, b, c = other * (2 * q - other), p * q, own * (2 * p - own)
        return (b + sign * math.sqrt(max(0.0, b * b - a * c))) / a if a > 0 else math.inf

    return root(low, others_high, -1) if p else 0.0, root(high, others_low, 1)


def area(scores: NDArray[np.float64], wanted: Flags) -> tuple[float, float]:
    """The share of pairs that are ranked rightly, ties counting half, and its variance by DeLong's components."""
    wins = (scores[wanted][:, None] > scores[~wanted]) + 0.5 * (scores[wanted][:, None] == scores[~wanted])
    if not wins.size:
        return UNDEFINED
    if min(wins.shape) == 1:
        return float(wins.mean()), math.nan
    rows = [wins.mean(axis) for axis in (1, 0)]
    return float(wins.mean()), float(sum(one.var(ddof=1) / len(one) for one in rows))


def logit_interval(middle: float, variance: float) -> Ends:
    if not (0 < middle < 1 and variance > 0):
        return UNDEFINED
    half = stats.norm.ppf(0.975) * math.sqrt(variance) / (middle * (1 - middle))
    low, high = (1 / (1 + math.exp(sign * half - math.log(middle / (1 - middle)))) for sign in (1, -1))
    return low, high


def calibration_error(scores: NDArray[np.float64], wanted: Flags) -> float:
    tenths = np.minimum(np.floor(scores * 10 + 1e-9), 9)
    own = [(tenths == tenth) for tenth in np.unique(tenths)]
    return float(sum(abs(scores[one].sum() - wanted[one].sum()) for one in own)) / len(scores)


def agree(found: Estimate, value: float, ends: Ends | None = None) -> None:
    expected = [value] if ends is None else [value, *ends]
    told = [found.value] if ends is None else [found.value, found.low, found.high]
    assert told == pytest.approx(expected, rel=1e-7, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("seed", range(30))
def test_every_number_of_an_audit_follows_from_the_rows(seed: int) -> None:
    wanted, scores, groups = rows_of(seed)
    chosen, least = scores >= 0.5, (0, 5, 30)[seed % 3]
    (found,) = ffalm.audit(
        label=wanted.astype(int), score=scores, group=pd.Series(groups, name="g"), min_group=least
    ).groupings
    masks = {name: groups == name for name in sorted({one for one in groups if one is not None})}
    large = {name: mask for name, mask in masks.items() if mask.sum() >= least}
    compared = large if len(large) > 1 else masks

    unknown = sum(one is None for one in groups)
    assert found.unknown_rows == unknown and (found.bounds is None) == (unknown == 0)

    def share(of: Flags, hits: Flags) -> Share:
        return float((of & hits).sum()), float(of.sum())

    by_name = {one.name: one for one in found.groups}
    best = max((share(mask, chosen) for mask in compared.values()), key=rate)
    for name, mask in masks.items():
        told = by_name[name].metrics
        assert (by_name[name].compared, by_name[name].small) == (name in compared, mask.sum() < least)
        for metric, of, hits in (
            ("base_rate", mask, wanted),
            ("selection_rate", mask, chosen),
            ("true_positive_rate", mask & wanted, chosen),
            ("false_positive_rate", mask & ~wanted, chosen),
            ("precision", mask & chosen, wanted),
            ("accuracy", mask, wanted == chosen),
        ):
            agree(told[metric], rate(share(of, hits)), wilson(share(of, hits), 0.95))
        own = share(mask, chosen)
        if best[0] == 0:
            assert math.isnan(told["impact_ratio"].value)
        elif own == best:
            assert told["impact_ratio"].value == 1
        else:
            agree(told["impact_ratio"], rate(own) / rate(best), ratio(own, best, 0.95))
        agree(told["auc"], area(scores[mask], wanted[mask])[0], logit_interval(*area(scores[mask], wanted[mask])))
        agree(told["calibration_error"], calibration_error(scores[mask], wanted[mask]))
        agree(told["mean_score_excess"], float((scores - wanted)[mask].mean()))
    if best[0]:
        ratios = [by_name[name].metrics["impact_ratio"] for name in compared]
        assert any(one.value == 1 and math.isnan(one.low) for one in ratios), "the best group itself has no interval"
    sets = {
        "dpd": [[share(mask, chosen) for mask in compared.values()]],
        "eod": [[share(mask & wanted, chosen) for mask in compared.values()]],
        "equalized_odds": [[share(mask & of, chosen) for mask in compared.values()] for of in (~wanted, wanted)],
        "predictive_parity": [[share(mask & chosen, wanted) for mask in compared.values()]],
        "accuracy_parity": [[share(mask, wanted == chosen) for mask in compared.values()]],
    }
    for metric, shares in sets.items():
        if any(trials == 0 for own in shares for _, trials in own):
            assert math.isnan(found.metrics[metric].value) and metric not in found.pairs
            continue
        gaps = {(a, b): rate(a) - rate(b) for own in shares for a, b in itertools.permutations(own, 2)}
        corrected = 1 - 0.05 / (len(shares) * math.comb(len(compared), 2))
        low = max(difference(*pair, corrected)[0] for pair in gaps)
        high = max(difference(*pair, 0.95)[1] for pair in gaps)
        agree(found.metrics[metric], max(gaps.values()), (max(0.0, low), high))
        if max(gaps.values()) > 0:
            pair, names = found.pairs[metric], list(compared)
            assert (pair.label is None) == (len(shares) == 1)
            of = shares[int(pair.label or 0)]  # the outcomes are called 0 and 1
            first, second = of[names.index(pair.high)], of[names.index(pair.low)]
            assert rate(first) - rate(second) == pytest.approx(max(gaps.values()))
            agree(pair.difference, max(gaps.values()), difference(first, second, corrected))
    if best[0]:
        pairs = list(itertools.permutations(sets["dpd"][0], 2))
        low = min(ratio(*pair, 0.95)[0] for pair in pairs)
        high = min(ratio(*pair, 1 - 0.05 / (len(pairs) / 2))[1] for pair in pairs)
        agree(found.metrics["impact_ratio"], min(map(rate, sets["dpd"][0])) / rate(best), (low, min(1.0, high)))
    areas = [area(scores[mask], wanted[mask])[0] for mask in compared.values()]
    agree(found.metrics["auc_gap"], max(areas) - min(areas) if not any(map(math.isnan, areas)) else math.nan)
    agree(found.metrics["worst_group_accuracy"], min(map(rate, sets["accuracy_parity"][0])))


def test_a_group_of_which_no_site_counts_a_row_has_no_rates_and_leaves_those_of_others_alone() -> None:
    """Of a 6 of 20 are selected, of b 12 of 20, of c nobody is there; the Tally is by prediction, label and group."""
    tally = Tally.of_counts(np.array([[[10, 5, 0], [4, 3, 0]], [[1, 2, 0], [5, 10, 0]]]))
    facts = CountedGroups("place", tally, ("a", "b", "c"), ("no", "yes"), 1).facts()
    ratios = {one.name: one.metrics["impact_ratio"] for one in facts.groups}
    agree(ratios["a"], 0.5, ratio((6, 20), (12, 20), 0.95))
    assert (ratios["b"].value, facts.groups[2].rows) == (1, 0)
    assert all(math.isnan(one.value) for one in (ratios["c"], facts.metrics["dpd"], facts.metrics["impact_ratio"]))
    assert facts.unknown_rows == 0 and facts.bounds is None and not facts.pairs
