"""The sentences of the pages in docs/results say what the CSV files beside them hold."""

from __future__ import annotations

import math
import statistics
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.reproduce.published import RACES, by_race, differences, flat, judged, majority, points, rows, runs, slashed

import ffalm
from ffalm.report.summary import skew
from ffalm.reproduce.frontier import AFFORDABLE, candidates, chosen, entries
from ffalm.reproduce.metric_forms import piecewise
from ffalm.reproduce.paper import METRICS, reported

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"

#: How a page writes a ratio.
FRACTIONS = {0.5: "half", 0.1: "a tenth", 2 / 3: "two thirds"}


def _mean(study: str, alpha: float, algorithm: str, metric: str) -> float:
    return statistics.fmean(float(run[f"test_{metric}"]) for run in runs(study, alpha, algorithm).values())


def _below(study: str, alpha: float, algorithm: str, metric: str) -> float:
    """By how many points a mean lies below FedAvg's."""
    return _mean(study, alpha, "fedavg", metric) - _mean(study, alpha, algorithm, metric)


def test_the_central_claim_is_told_as_the_runs_have_it() -> None:
    ours, base = (
        {metric: _mean("utkface", 0.3, name, metric) for metric in METRICS}
        for name in ("ffalm-released-code", "fedavg")
    )
    fraction = FRACTIONS[min(FRACTIONS, key=lambda value: abs(value - ours["dpd"] / base["dpd"]))]
    paper = reported("utkface", 0.3, "ffalm")
    assert paper is not None
    collapsed = [float(run["test_accuracy"]) for run in runs("utkface", 0.3, "ffalm-paper").values()]
    assert sum(accuracy < 80 for accuracy in collapsed) == 1
    assert ours["accuracy"] > base["accuracy"]
    assert (
        f"DPD is {fraction} of FedAvg's ({ours['dpd']:.2f} against {base['dpd']:.2f}) at no cost in accuracy "
        f"({ours['accuracy']:.2f} against {base['accuracy']:.2f}), near the paper's row ({paper['accuracy']} / "
        f"{paper['dpd']:.2f}). With the schedule that the paper *prints* one run of ten collapses "
        f"({min(collapsed):.1f} % accuracy)."
    ) in flat()


def test_the_verdicts_on_the_first_page_are_those_of_the_runs() -> None:
    text = flat("README.md")
    ours, base = (
        {metric: _mean("utkface", 0.3, name, metric) for metric in METRICS}
        for name in ("ffalm-released-code", "fedavg")
    )
    assert f"DPD {ours['dpd']:.2f} against FedAvg's {base['dpd']:.2f} at {ours['accuracy']:.2f} against" in text
    assert f"against {base['accuracy']:.2f} % accuracy, {len(runs('utkface', 0.3, 'fedavg'))} seeds" in text
    costs = [_below("celeba", 0.3, name, "accuracy") for name in ("ffalm-paper", "ffalm-released-code")]
    assert f"{costs[0]:.1f} to {costs[1]:.1f} points of accuracy" in text
    dpd, cost = (_below("celeba", 1.0, "ffalm-released-code", metric) for metric in ("dpd", "accuracy"))
    assert f"DPD falls by {dpd:.1f} points for {cost:.1f} points of accuracy" in text
    assert f"**not with Black against the rest** ({ours['eod']:.2f})" in text
    assert "89.11 / 3.64 / 12.81" in text and "`dpd <= 0.05` gives 89.11 / 3.64 / 12.81" in flat("targets.md")
    (plain,) = [
        line for line in BENCHMARKS.read_text(encoding="utf-8").splitlines() if line.startswith("| plain loop |")
    ][:1]
    assert f"a round is {plain.split('|')[4].strip()} times as fast as in a plain PyTorch loop" in text


def _rates(partition: str) -> tuple[list[float], int]:
    """FedAvg's shares of predicted and true positives, right answers, and recalls of both labels; and its runs."""
    found = [one.sum(-1) for run, one in by_race().items() if run[:3] == (partition, "scratch", 0.3)]
    rates = [
        [one[1].sum() / one.sum(), one[:, 1].sum() / one.sum(), one.trace() / one.sum(), *(one.diagonal() / one.sum(0))]
        for one in found
    ]
    return list(100 * np.mean(rates, 0)), len(found)


def test_what_fedavg_selects_follows_from_the_counts() -> None:
    (selected, positive, _, rejects, hits), seeds = _rates("balanced")
    assert f"{positive:.1f} % of the test faces are under 20" in flat()
    assert (
        f"FedAvg calls {selected:.1f} % under 20: it finds {hits:.1f} % of those who are and {rejects:.1f} % of those "
        f"who are not (balanced accuracy {(hits + rejects) / 2:.1f} %)"
    ) in flat()
    (selected, _, right, rejects, hits), others = _rates("even")
    assert f"it calls {selected:.1f} % under 20 and finds {hits:.1f} %: {right:.1f} % accurate" in flat()
    assert f"no better balanced ({(hits + rejects) / 2:.1f} %)" in flat() and f"({seeds} and {others} seeds)" in flat()


def test_without_its_weakest_runs_the_central_claim_is_weaker_and_stands() -> None:
    found = list(runs("utkface", 0.3, "ffalm-released-code").values())
    seed = runs("utkface", 0.3, "ffalm-released-code")[4]
    kept = [run for run in found if float(run["test_accuracy"]) >= 83.5]
    means = [statistics.fmean(float(run[f"test_{metric}"]) for run in kept) for metric in METRICS]
    numbers = slashed([float(seed[f"test_{metric}"]) for metric in METRICS])
    assert len(found) - len(kept) == 2
    assert f"(seed 4: {numbers}) is hardly better" in flat()
    assert f'always answering "20 or older" ({100 * majority("utkface"):.1f} %)' in flat()
    assert f"the row is {' / '.join(f'{mean:.1f}' for mean in means)}: the claim is weaker" in flat()
    assert means[1] < _mean("utkface", 0.3, "fedavg", "dpd") - 5


def test_at_milder_skews_no_gap_on_utkface_is_clear_of_zero() -> None:
    for alpha in (1.0, 5.0):
        for algorithm in ("fpfl", "ffalm-paper", "ffalm-released-code"):
            found = differences("utkface", alpha, algorithm)
            for metric in ("dpd", "eod"):
                mean, half = found[metric]
                assert mean - half <= 0 <= mean + half
    assert "no change of DPD or EOD by FFALM or FPFL against FedAvg is clear of zero" in flat()


def test_what_fairness_costs_on_celeba_is_told_as_the_runs_have_it() -> None:
    fpfl, printed, released = (
        _below("celeba", 0.3, name, "accuracy") for name in ("fpfl", "ffalm-paper", "ffalm-released-code")
    )
    assert (
        f"{fpfl:.1f} points of accuracy for FPFL and {printed:.1f} (printed schedule) to {released:.1f} (released "
        "schedule) for FFALM"
    ) in flat()
    dpd, cost = (_below("celeba", 1.0, "ffalm-released-code", metric) for metric in ("dpd", "accuracy"))
    told = f"the released schedule lowers DPD by {dpd:.1f} points for {cost:.1f} points of accuracy"
    assert f"at {skew(1.0)} {told}" in flat()


def test_what_recommended_changes_is_told_with_its_correction_for_many_comparisons() -> None:
    eod, dpd = _below("utkface", 0.3, "ffalm-recommended", "eod"), _below("celeba", 0.3, "ffalm-recommended", "dpd")
    gain = -_below("utkface", 0.3, "ffalm-recommended", "accuracy")
    assert f"EOD falls by {eod:.1f} points on UTKFace while accuracy rises by {gain:.1f}" in flat()
    assert f"DPD falls by {dpd:.1f} points on the CelebA subset" in flat()
    assert f"in DPD on the CelebA subset ({dpd:.1f})" in flat()
    found: dict[tuple[str, float, str], float] = {}
    for study in ("utkface", "celeba"):
        for alpha in (0.3, 1.0, 5.0):
            ours, base = (runs(study, alpha, name) for name in ("ffalm-recommended", "fedavg"))
            for metric in ("dpd", "eod"):
                apart = [float(ours[seed][f"test_{metric}"]) - float(base[seed][f"test_{metric}"]) for seed in ours]
                found[study, alpha, metric] = float(stats.ttest_1samp(apart, 0).pvalue)
    ordered = sorted(found, key=lambda key: found[key])
    corrected = {key: found[key] * (len(found) - place) for place, key in enumerate(ordered)}
    assert ordered[:2] == [("celeba", 0.3, "dpd"), ("utkface", 0.3, "eod")]
    assert (
        f"Holm's correction over its {len(found)} gaps neither is clear (p = {corrected[ordered[1]]:.2f} and "
        f"{corrected[ordered[0]]:.2f})"
    ) in flat()


def test_recommended_is_stable_in_all_its_runs() -> None:
    worst, largest, count = -math.inf, 0.0, 0
    for study in ("utkface", "celeba"):
        for alpha in (0.3, 1.0, 5.0):
            ours, base = (runs(study, alpha, name) for name in ("ffalm-recommended", "fedavg"))
            for seed, run in ours.items():
                worst = max(worst, float(base[seed]["test_accuracy"]) - float(run["test_accuracy"]))
                largest, count = max(largest, float(run["largest_dual"])), count + 1
    assert (
        f"in all {count} runs, at all three skews, the dual stays within {largest:.2f} and no accuracy falls more than "
        f"{worst:.1f} points below FedAvg's"
    ) in flat()


def test_the_published_search_of_frontier_chose_safe() -> None:
    label = chosen(judged())
    (entry,) = [entry for entry in entries() if entry.label == label]
    settings = {name: value for name, value in entry.settings.items() if name not in ("name", "preset")}
    assert ffalm.FFALM.preset(entry.settings["preset"], **settings) == ffalm.FFALM.preset("safe")


def test_no_setting_is_fairer_than_all_baselines_on_both_data_sets_for_a_point() -> None:
    found = judged()
    winners = []
    for data in ("utkface", "celeba"):
        mine = [one for one in found if one.data == data and one.stable]
        fedavg = next(one for one in mine if one.label == "FedAvg").metrics["accuracy"]
        others = [one for one in mine if one.label not in candidates(found)]
        winners.append(
            {
                one.label
                for one in mine
                if one.metrics["accuracy"] >= fedavg - AFFORDABLE and all(one.fairer_than(other) for other in others)
            }
        )
    assert not winners[0] & winners[1]
    assert "no setting of FFALM that we tried is fairer than all baselines on both data sets" in flat()


def test_one_setting_alone_is_fairer_in_both_gaps_than_fedavg_and_fpfl_on_utkface() -> None:
    mine = [one for one in judged() if one.data == "utkface" and one.stable]
    fedavg, fpfl = (next(one for one in mine if one.label == name) for name in ("FedAvg", "FPFL"))
    fairer = [one for one in mine if one.fairer_than(fedavg) and one.fairer_than(fpfl)]
    assert [one.label for one in fairer] == ["FFALM, released-code, all rows, dual within 1"]
    assert fairer[0].metrics["accuracy"] > fedavg.metrics["accuracy"]
    others = [one for one in mine if one.metrics["dpd"] < fpfl.metrics["dpd"] and one not in fairer]
    assert len(others) == 3
    assert "On UTKFace one is fairer in both gaps than FedAvg and FPFL" in flat()
    assert "and three more in DPD alone" in flat()


def test_ffalm_against_fpfl_is_told_as_the_runs_have_it() -> None:
    found = differences("utkface", 0.3, "ffalm-released-code", "fpfl")
    ends = {metric: (mean, points(mean - half), points(mean + half)) for metric, (mean, half) in found.items()}
    mean, low, high = ends["dpd"]
    assert f"has {-mean:.2f} points less DPD ({low} to {high})" in flat()
    accuracy, eod = (f"({points(one[0])}, {one[1]} to {one[2]})" for one in (ends["accuracy"], ends["eod"]))
    assert f"neither its accuracy {accuracy} nor its EOD {eod} differs clearly" in flat()


def test_single_runs_are_as_the_page_says() -> None:
    """Sentences about runs, not means: the spread of FedAvg, its best rounds, and the runs that collapse."""
    fedavg = runs("utkface-grouping-darker_vs_rest", 0.3, "fedavg")
    accuracies, gaps = ([float(run[f"test_{metric}"]) for run in fedavg.values()] for metric in ("accuracy", "eod"))
    assert (
        f"from {min(accuracies):.1f} to {max(accuracies):.1f} % accuracy, EOD of all rows from {min(gaps):.1f} to "
        f"{max(gaps):.1f}"
    ) in flat()
    last, best = (
        slashed([statistics.fmean(float(run[f"{kind}_{metric}"]) for run in fedavg.values()) for metric in METRICS])
        for kind in ("last", "best")
    )
    assert f"{last} in the last round, {best} in the best, {len(fedavg)} seeds" in flat()
    printed = [run for alpha in (1.0, 5.0) for run in runs("celeba", alpha, "ffalm-paper").values()]
    low = [run for run in printed if float(run["test_accuracy"]) < 61]
    assert (len(printed), len(low)) == (10, 4)
    assert "With the printed schedule four of ten runs collapse." in flat()
    assert f"as far as {max(float(run['largest_dual']) for run in printed):.0f}" in flat()
    fairfed = [float(run["test_accuracy"]) for run in runs("utkface", 0.3, "fairfed").values()]
    assert sum(accuracy < 40 for accuracy in fairfed) == 6
    listed = ", ".join(f"{accuracy:.0f}" for accuracy in fairfed)
    assert f"falls below 40 % accuracy in six of ten runs ({listed})" in flat()
    plain = runs("utkface-partition-plain", 0.3, "ffalm-paper")
    assert f"the dual reaches {max(float(run['largest_dual']) for run in plain.values()):,.0f}." in flat()


def _parted(counts: np.ndarray, apart: tuple[str, ...]) -> np.ndarray:
    """The counts of two groups: some races, and the rest."""
    mine = np.isin(RACES, apart)
    return np.stack([counts[..., ~mine].sum(-1), counts[..., mine].sum(-1)], -1)


def _gaps(counts: np.ndarray, form: str) -> tuple[float, float]:
    """DPD and EOD in percent, of all rows together or averaged over pieces of them."""
    if form == "pieces":
        found = piecewise(counts.tolist())
        return 100 * found["dpd"], 100 * found["eod"]
    dpd = abs(np.subtract(*counts[1].sum(0) / counts.sum((0, 1))))
    eod = abs(np.subtract(*counts[1, 1] / counts[:, 1].sum(0)))
    return float(100 * dpd), float(100 * eod)


def _mean_gaps(apart: tuple[str, ...], form: str, partition: str, start: str, alpha: float) -> np.ndarray:
    found = [counts for run, counts in by_race().items() if run[:3] == (partition, start, alpha)]
    return np.asarray(np.mean([_gaps(_parted(counts, apart), form) for counts in found], 0))


@pytest.mark.parametrize(
    ("choices", "partition", "start", "alphas"),
    [
        ("split by race", "balanced", "scratch", (0.3,)),
        ("even clients, labels as they are", "even", "scratch", (0.3, 1.0, 5.0)),
        ("weights of the CelebA subset", "balanced", "celeba", (0.3, 1.0, 5.0)),
    ],
)
def test_fedavgs_gaps_follow_from_the_counts_by_race(
    choices: str, partition: str, start: str, alphas: tuple[float, ...]
) -> None:
    for row in rows("utkface-fedavg-choices.csv"):
        alpha = float(row["alpha"])
        if row["choices"] != choices:
            continue
        assert alpha in alphas
        found = [counts for run, counts in by_race().items() if run[:3] == (partition, start, alpha)]
        assert int(row["seeds"]) == len(found)
        right = [100 * (one[0, 0].sum() + one[1, 1].sum()) / one.sum() for one in found]
        assert float(row["accuracy"]) == pytest.approx(np.mean(right))
        gaps = _mean_gaps(("Black", "Indian"), row["gaps_of"], partition, start, alpha)
        assert gaps == pytest.approx([float(row["dpd"]), float(row["eod"])])


def test_one_way_alone_to_part_the_races_comes_near_the_papers_gaps() -> None:
    paper = reported("utkface", 0.3, "fedavg")
    assert paper is not None
    ways = [apart for size in (1, 2) for apart in combinations(RACES, size)]
    assert len(ways) == 15
    goal = np.array([paper["dpd"], paper["eod"]])
    far = {
        (apart, form): np.abs(_mean_gaps(apart, form, "balanced", "scratch", 0.3) - goal).max()
        for apart in ways
        for form in ("pieces", "rows")
    }
    assert [way for way, gap in far.items() if gap <= 2] == [(("Black", "Indian"), "pieces")]
    both, black, cut = (
        slashed(list(_mean_gaps(apart, form, "balanced", "scratch", 0.3)))
        for apart, form in ((("Black", "Indian"), "pieces"), (("Black",), "rows"), (("Black",), "pieces"))
    )
    assert f"both lie within two points of the paper's ({both})" in flat()
    assert f"Black against the rest has {black} of all rows together, and {cut} in pieces" in flat()
