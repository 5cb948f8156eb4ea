"""Thresholds by site and group within a bound at every site and over all sites: hand-worked, and by brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from ffalm.fairness import ScoreHistogram
from ffalm.targets import Target
from ffalm.targets.repair import Repair
from ffalm.targets.site_thresholds import SiteThresholds, fit_sites


def two_bins(*rows: tuple[tuple[int, int], tuple[int, int]]) -> ScoreHistogram:
    """For each group (unfavourable, favourable) rows of the low bin, then of the high one."""
    return ScoreHistogram(torch.tensor(rows).permute(1, 2, 0).unsqueeze(1), as_trained=1)


#: Within each site the groups have the same rates at (1, 1): 0.2 in the north, 0.8 in the south. Group 0 lives in the
#: north, group 1 in the south, so over all rows the rates are (80 * 0.2 + 20 * 0.8) / 100 = 0.32 and 0.68.
NORTH = two_bins(((64, 0), (0, 16)), ((16, 0), (0, 4)))
SOUTH = two_bins(((4, 0), (0, 16)), ((16, 0), (0, 64)))
SITES = {"north": NORTH, "south": SOUTH}


def fitted(target: str, **settings: float) -> SiteThresholds | None:
    return fit_sites(SITES, Target.parse(target), smooth=False, enough=1, **settings)  # type: ignore[arg-type]


def edges(found: SiteThresholds | None) -> dict[str, list[int]]:
    assert found is not None
    return {site: [mix[0][0] for mix in repair.edges] for site, repair in found.sites.items()}


def test_sites_that_are_fair_by_themselves_keep_their_own_thresholds_where_the_federation_is_fair_too() -> None:
    found = fitted("dpd <= 0.4")
    assert edges(found) == {"north": [1, 1], "south": [1, 1]}
    assert found is not None and found.tally(SITES).dpd() == pytest.approx(0.36)
    assert found.tally(SITES).accuracy() == 1.0


def test_a_gap_between_sites_is_closed_at_the_least_cost() -> None:
    """With a bound of 0.1 everybody at both sites must get the same label, and half of the rows are wrong."""
    found = fitted("dpd <= 0.1")
    assert found is not None
    assert edges(found) in ({"north": [0, 0], "south": [0, 0]}, {"north": [2, 2], "south": [2, 2]})
    assert found.tally(SITES).dpd() == 0.0
    assert found.tally(SITES).accuracy() == 0.5


@pytest.mark.parametrize("target", ["dpd <= 0.1", "dpd <= 0.4"])
def test_histograms_read_from_a_file_give_the_same_thresholds(target: str) -> None:
    stored = {site: replace(one, counts=one.counts.numpy()) for site, one in SITES.items()}  # type: ignore[arg-type]
    assert fit_sites(stored, Target.parse(target), smooth=False, enough=1) == fitted(target)


def test_the_federation_may_have_a_bound_of_its_own() -> None:
    """Everybody favourable in the north, and the south as it is: rates 0.96 and 0.84, a gap of 0.12."""
    found = fit_sites(SITES, Target.parse("dpd <= 0.05"), federation=Target.parse("dpd <= 0.2"), smooth=False, enough=1)
    assert found is not None
    assert edges(found) in ({"north": [0, 0], "south": [1, 1]}, {"north": [1, 1], "south": [2, 2]})
    assert found.tally(SITES).dpd() == pytest.approx(0.12)
    assert found.tally(SITES).accuracy() == pytest.approx(0.6)


def test_sites_of_few_rows_keep_the_federations_thresholds_and_count_for_its_gap() -> None:
    others = Repair.fixed("groups", [1, 1], 1)
    found = fit_sites(SITES, Target.parse("dpd <= 0.2"), others=others, smooth=False, enough=21)
    assert found is not None and found.sites == {} and found.of("south") == others
    assert found.tally(SITES).dpd() == pytest.approx(0.36)
    large = {**SITES, "west": two_bins(((400, 100), (100, 400)), ((400, 100), (100, 400)))}
    found = fit_sites(large, Target.parse("dpd <= 0.05"), others=others, smooth=False, enough=21)
    assert found is not None and list(found.sites) == ["west"]
    assert found.tally(large).dpd() <= 0.05


def random_site(seed: int, groups: int, bins: int) -> ScoreHistogram:
    draws = np.random.default_rng(seed)
    return ScoreHistogram(torch.from_numpy(draws.integers(1, 9, (bins, 1, 2, groups))), as_trained=bins // 2)


@pytest.mark.parametrize("target", ["dpd <= 0.1", "eod <= 0.2", "impact_ratio >= 0.8", "dpd <= 0.2, eod <= 0.2"])
@pytest.mark.parametrize(("groups", "bins"), [(2, 3), (3, 2)])
def test_the_search_finds_what_brute_force_finds(target: str, groups: int, bins: int) -> None:
    aim = Target.parse(target)
    for seed in range(3):
        sites = {str(place): random_site(10 * seed + place, groups, bins) for place in range(2)}
        choices = list(itertools.product(range(bins + 1), repeat=groups))
        tallies = [[one.tally(list(each)) for each in choices] for one in sites.values()]
        fair = [[one for one in own if aim.meets(one.metrics())] for own in tallies]
        together = (reduce(add, pair) for pair in itertools.product(*fair))
        best = max((one.accuracy() for one in together if aim.meets(one.metrics())), default=-1.0)
        found = fit_sites(sites, aim, smooth=False, enough=1)
        assert (found.tally(sites).accuracy() if found else -1.0) == pytest.approx(best)
        assert found is None or all(aim.meets(found.of(site).tally(one).metrics()) for site, one in sites.items())


def normal_site(seed: int, base: float, share: float, rows: int = 3000) -> ScoreHistogram:
    """Rows of a site with its own shares of favourable labels and of group 1."""
    draws = torch.Generator().manual_seed(seed)
    group = (torch.rand(rows, generator=draws) < share).long()
    labels = (torch.rand(rows, generator=draws) < base).long()
    scores = torch.randn(rows, generator=draws) + 2 * labels - 1 + 0.5 * group
    return ScoreHistogram.of(scores, torch.zeros_like(labels), labels, group, (2, 2), 1)


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_both_bounds_hold_with_the_confidence_that_is_asked(level: float) -> None:
    sites = {str(place): normal_site(place, 0.3 + 0.1 * place, 0.2 + 0.2 * place) for place in range(4)}
    found = fit_sites(sites, Target.parse("dpd <= 0.06"), level=level)
    assert found is not None
    for tally in (found.tally(sites), *(found.of(site).tally(one) for site, one in sites.items())):
        assert tally.dpd() <= 0.06 + 1e-9
        if level > 0.5:
            assert tally.interval("dpd", 2 * level - 1)[1] <= 0.06 + 1e-9
    free = sum(float(one.correct().max(0).values.sum()) for one in sites.values()) / 12000
    assert found.tally(sites).accuracy() > free - 0.12


BINS = 24


def rows_of_site(seed: int, groups: int, rows: int = 3000) -> NDArray[np.int64]:
    """Counts by (bin, label, group) of a site with its own shares of groups and labels."""
    draws = np.random.default_rng(seed)
    group = draws.choice(groups, rows, p=draws.dirichlet(3 * np.ones(groups)))
    label = (draws.random(rows) < draws.uniform(0.25, 0.6) + 0.1 * (group == 0)).astype(int)
    scores = draws.normal(size=rows) + 1.6 * label - 0.8 + 0.5 * (group == groups - 1)
    counts = np.zeros((BINS, 2, groups), dtype=np.int64)
    np.add.at(counts, (np.clip((scores + 4) / 8 * BINS, 0, BINS - 1).astype(int), label, group), 1)
    return counts


def most_correct(
    sites: list[NDArray[np.int64]], kept: NDArray[np.int64], metric: str, own: float, common: float
) -> float:
    """What no thresholds exceed: the correct rows of the best mixtures of thresholds, by a linear programme.

    Each pair of groups is compared, at each site within `own` and over all rows within `common`. `kept` are the rows of
    small sites, whose thresholds are given: by (selected, label, group).
    """
    ratio, groups = metric == "impact_ratio", sites[0].shape[2]
    above = np.array([[one[edge:].sum(0) for edge in range(BINS + 1)] for one in sites])  # (site, edge, label, group)
    right = (above[:, :, 1] + above[:, :1, 0] - above[:, :, 0]).transpose(0, 2, 1)  # (site, group, edge)

    def of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows that the rate is about."""
        return np.asarray(counts[..., 1, :] if metric == "eod" else counts.sum(-2))

    hits, chosen = of(above).transpose(0, 2, 1), of(kept[1])
    trials, all_trials = hits[:, :, 0], hits[:, :, 0].sum(0) + of(kept.sum(0))
    rows, limits = [], []
    for first, second in itertools.permutations(range(groups), 2):
        for place in [None, *range(len(sites))]:
            bound, counted = (common, all_trials) if place is None else (own, trials[place])
            scale = bound if ratio else 1.0
            row = np.zeros(right.shape)
            where = slice(None) if place is None else slice(place, place + 1)
            row[where, first] = scale * hits[where, first] / counted[first]
            row[where, second] = -hits[where, second] / counted[second]
            given = (
                0.0 if place is not None else scale * chosen[first] / counted[first] - chosen[second] / counted[second]
            )
            rows.append(row.ravel())
            limits.append((0.0 if ratio else bound) - given)
    found = linprog(
        -right.ravel(),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.kron(np.eye(len(sites) * groups), np.ones(BINS + 1)),
        b_eq=np.ones(len(sites) * groups),
    )
    return -float(found.fun)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize(
    ("metric", "own", "common"), [("dpd", 0.3, 0.02), ("eod", 0.2, 0.02), ("impact_ratio", 0.6, 0.95)]
)
def test_thresholds_are_nearly_as_accurate_as_the_best_mixtures(
    metric: str, own: float, common: float, groups: int
) -> None:
    """Few distinct scores, so that a threshold moves many rows; and a small site that keeps its thresholds."""
    sign = ">=" if metric == "impact_ratio" else "<="
    aim, whole = (Target.parse(f"{metric} {sign} {bound}") for bound in (own, common))
    for seed in range(2):
        counts = [rows_of_site(100 * seed + place, groups) for place in range(3)]
        small, edge = rows_of_site(1000 + seed, groups, 120), BINS // 2 - 2
        sites = {
            str(place): ScoreHistogram(torch.from_numpy(one[:, None]), as_trained=BINS // 2)
            for place, one in enumerate([*counts, small])
        }
        others = Repair.fixed("groups", [edge] * groups, edge)
        found = fit_sites(sites, aim, federation=whole, others=others, smooth=False, enough=100)
        assert found is not None and list(found.sites) == ["0", "1", "2"]
        assert whole.meets(found.tally(sites).metrics())
        large = {name: sites[name] for name in found.sites}
        assert all(aim.meets(found.of(name).tally(one).metrics()) for name, one in large.items())
        kept = np.stack([small[:edge].sum(0), small[edge:].sum(0)])
        right, most = found.tally(large).accuracy() * 9000, most_correct(counts, kept, metric, own, common)
        assert most - 0.005 * 9000 <= right <= most + 1e-6
