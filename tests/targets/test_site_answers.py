"""A target at every site: thresholds of each site's own where its rows suffice, and a verdict for each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.report.answer_card import answer_card
from ffalm.report.answer_report import sentences, sites, to_plain
from ffalm.targets.answer import Answer
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.site_answers import with_sites
from ffalm.targets.target import Scope, Target

TARGET = Target.parse("dpd <= 0.05")
NAMES = ("a", "b")


def histogram(seed: int, rows: int, shift: float, groups: int = 2) -> ScoreHistogram:
    """Rows of two groups, whose scores differ by `shift` between them."""
    draws = torch.Generator().manual_seed(seed)
    group = torch.arange(rows) % groups
    labels = (torch.rand(rows, generator=draws) < 0.5).long()
    scores = torch.randn(rows, generator=draws) + 2 * labels - 1 + shift * group
    return ScoreHistogram.of(scores, torch.zeros_like(labels), labels, group, (2, 2), 1)


def parts(seed: int, rows: int, shift: float) -> dict[str, ScoreHistogram]:
    return {"validation": histogram(seed, rows, shift), "test": histogram(seed + 1, rows, shift)}


#: Opposite gaps cancel in the federation and are large at each site; the last has few rows.
SITES = {"north": parts(0, 6000, 1.0), "south": parts(2, 6000, -1.0), "west": parts(4, 40, 1.0)}


def answered(scope: Scope, given: dict[str, dict[str, ScoreHistogram]] | None = None) -> Answer:
    held = SITES if given is None else given
    pooled = {part: histogram(9, 0, 0.0) for part in ("validation", "test")}
    for one in (held or SITES).values():
        pooled = {part: pooled[part] + one[part] for part in pooled}
    answer = answer_of([FinishedRun("FedAvg", 0, None, ".", pooled)], TARGET, group_names=NAMES)
    return with_sites(answer, held, scope, "groups", NAMES)


def test_a_federation_may_meet_a_target_that_none_of_its_sites_meets() -> None:
    answer = answered("federation")
    assert answer.verdict == "met with confidence"
    assert [one.verdict(TARGET) for one in answer.sites] == ["not met"] * 3
    assert not any(one.own for one in answer.sites) and answer.together is None


def test_rows_that_thresholds_were_fitted_to_confirm_nothing_at_sites_either() -> None:
    held = {site: {"validation": SITES[site]["validation"]} for site in ("north", "south")}
    pooled = {"validation": held["north"]["validation"] + held["south"]["validation"]}
    answer = answer_of([FinishedRun("FedAvg", 0, None, ".", pooled)], TARGET, group_names=NAMES)
    answer = with_sites(answer, held, "both", "groups", NAMES)
    assert [one.verdict(TARGET) for one in answer.sites] == ["met in the sample"] * 2
    assert answer.together is not None and answer.together.ends["dpd"] < 0.05
    assert answer.verdict == "met in the sample"


def test_sites_with_enough_rows_get_thresholds_of_their_own() -> None:
    answer = answered("sites", {name: SITES[name] for name in ("north", "south")})
    assert [one.own for one in answer.sites] == [True, True]
    assert all(one.before.metrics["dpd"] > 0.2 for one in answer.sites)
    assert all(one.after.metrics["dpd"] <= 0.05 for one in answer.sites)
    assert answer.verdict != "not met"
    assert answer.together is not None and answer.test == answer.together.metrics
    assert sum(one.rows for one in answer.together.groups) == 12000


def test_thresholds_of_sites_have_a_price_also_where_the_model_without_a_target_was_chosen() -> None:
    answer = answered("sites", {name: SITES[name] for name in ("north", "south")})
    assert answer.unconstrained is answer.chosen and answer.before.test is not None
    assert answer.cost == pytest.approx(answer.before.test.metrics["accuracy"] - answer.test["accuracy"])
    first, *_ = told = sentences(answer)
    assert first.startswith("FedAvg, sites' own thresholds: accuracy")
    assert any(line.startswith("It gains 5.0 points") and "FedAvg, as trained, 79.1 %" in line for line in told)
    card = answer_card(answer, "yes")
    assert card.model == "FedAvg with sites' own thresholds" and not card.payers[0].startswith("Nobody pays")
    assert card.tiles[-1].value == "sites' own" and "2 of 2 sites" in card.tiles[-1].about


def test_a_site_of_few_rows_keeps_the_federations_thresholds_and_decides_the_verdict() -> None:
    answer = answered("both")
    assert [one.own for one in answer.sites] == [True, True, False]
    assert answer.sites[2].before.metrics == pytest.approx(answer.sites[2].after.metrics, nan_ok=True)
    assert answer.verdict == "not met"
    told = " ".join(sentences(answer))
    assert "the target holds at 2 of 3 sites" in told and "Too few held-out rows for that at west" in told
    table = sites(answer)
    assert table is not None and len(table.sections[0].rows) == 3
    assert [one["own_thresholds"] for one in to_plain(answer)["sites"]] == [True, True, False]


def test_a_target_for_both_is_fitted_together_where_sites_apart_leave_the_federation_beyond_it() -> None:
    """Group a lives where few labels are favourable: rates that are equal within each site differ between them."""

    def skewed(seed: int, base: float, share: float) -> dict[str, ScoreHistogram]:
        draws = torch.Generator().manual_seed(seed)
        found = {}
        for part in ("validation", "test"):
            labels, group = ((torch.rand(6000, generator=draws) < one).long() for one in (base, share))
            scores = torch.randn(6000, generator=draws) + 2 * labels - 1
            found[part] = ScoreHistogram.of(scores, torch.zeros_like(labels), labels, group, (2, 2), 1)
        return found

    given = {"north": skewed(0, 0.35, 0.3), "south": skewed(1, 0.65, 0.7)}
    apart, together = answered("sites", given).together, answered("both", given).together
    assert apart is not None and together is not None
    assert apart.metrics["dpd"] > 0.07
    assert together.metrics["dpd"] < 0.06
    assert together.metrics["accuracy"] > 0.7


def test_a_site_without_rows_of_a_group_cannot_be_judged() -> None:
    alone = {part: histogram(7, 400, 0.0, groups=1) for part in ("validation", "test")}
    answer = answered("sites", {"north": SITES["north"], "east": alone})
    assert [one.verdict(TARGET) is None for one in answer.sites] == [False, True]
    assert not answer.sites[1].own
    assert answer.verdict == answer.sites[0].verdict(TARGET)


def test_a_site_beyond_one_bound_misses_the_target_also_where_another_gap_is_undefined() -> None:
    east = histogram(7, 400, 2.0)
    east.counts[..., 1, 1] = 0  # no row of group b is favourable: EOD is undefined there, and DPD is wide
    given = {**SITES, "east": {"validation": east, "test": east}}
    found = answered("federation", given).sites[-1]
    both = Target.parse("dpd <= 0.05, eod <= 0.1")
    assert math.isnan(found.after.metrics["eod"]) and found.after.metrics["dpd"] > 0.05
    assert found.verdict(both) == "not met"
    assert found.verdict(Target.parse("eod <= 0.1")) is None


def test_a_target_for_sites_needs_to_know_the_sites() -> None:
    with pytest.raises(UserError, match="column of owners"):
        answered("sites", {})
    assert replace(answered("federation", {}), notes=()).sites == ()
