from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.report.makers import run, study
from tests.report.test_page import Page

from ffalm.fairness.intervals import wilson
from ffalm.report.answer_card import answer_card
from ffalm.report.answer_report import sentences
from ffalm.report.page import render
from ffalm.targets.answer import Answer, Candidate, CandidateRun, GroupRates, Scores, choose
from ffalm.targets.target import Target

REPAIR = {"kind": "groups", "single": 0.0, "groups": {
    "women": [{"threshold": -0.5, "probability": 1.0}], "men": [{"threshold": "inf", "probability": 1.0}]}}  # fmt: skip


def scored(accuracy: float, dpd: float, women: tuple[float, float, float], end: float | None = None) -> Scores:
    groups = (GroupRates("women", 100, *women, True, 40), GroupRates("men", 300, 0.5, 0.6, 0.8, True, 0))
    metrics = {"accuracy": accuracy, "dpd": dpd, "eod": 0.1}
    return Scores(metrics, {"dpd": dpd if end is None else end}, 0.95, groups)


def candidate(label: str, kind: Any, one: Scores, repair: dict[str, Any] | None = None) -> Candidate:
    return Candidate(label, kind, (CandidateRun(3, "runs/x", repair or {"kind": "none"}, one, one),))


@pytest.fixture
def answer() -> Answer:
    free = candidate("Free", "accurate", scored(0.90, 0.20, (0.2, 0.5, 0.9)))
    fair = candidate("Fair", "groups", scored(0.88, 0.04, (0.4, 0.75, 0.8)), REPAIR)
    return choose(Target.parse("dpd <= 0.05"), [free, fair])


def test_an_unmet_target_is_not_said_to_cost_nothing() -> None:
    only = candidate("Free", "none", scored(0.90, 0.20, (0.2, 0.5, 0.9)))
    answer = choose(Target.parse("dpd <= 0.05"), [only])
    assert "It is also the most accurate candidate of all." in sentences(answer)
    (tile,) = (one for one in answer_card(answer, "yes").tiles if one.name == "Cost in accuracy")
    assert tile.about == "it is also the most accurate model of all; the target is not met"
    met = choose(Target.parse("dpd <= 0.3"), [only])
    assert "It is also the most accurate candidate of all: the target costs no accuracy." in sentences(met)


def test_a_blind_rule_is_not_called_the_models_own_predictions() -> None:
    rule = {"kind": "blind", "offset": 0.0, "weights": {}}
    answer = choose(
        Target.parse("dpd <= 0.05"), [candidate("Fair", "blind", scored(0.88, 0.04, (0.4, 0.7, 0.8)), rule)]
    )
    card = answer_card(answer, "yes")
    assert card.blind
    assert card.tiles[-1].value == "a blind rule"
    assert "nobody's group is asked for" in card.tiles[-1].about


def test_the_card_names_the_model_the_verdict_the_numbers_and_the_cost(answer: Answer) -> None:
    card = answer_card(answer, "yes")
    assert card.model == "Fair with group thresholds"
    assert (card.state, card.verdict) == ("good", "Met, with 95 % confidence")
    assert card.asked == ["the share of people predicted “yes” may differ by at most 5 points between groups"]
    tiles = {tile.name: (tile.value, tile.about) for tile in card.tiles}
    low, high = (f"{100 * end:.1f}" for end in wilson(352, 400))
    assert tiles["Accuracy"] == ("88.0 %", f"95 % interval {low} to {high}, on 400 test rows")
    assert tiles["Gap in predicted “yes” (DPD)"] == (
        "4.0 points",
        "at most 4.0 with 95 % confidence; target: at most 5",
    )
    assert tiles["Gap in true “yes” found (EOD)"] == (
        "10.0 points",
        "not bounded; 10.0 without a target",
    )
    assert tiles["Cost in accuracy"] == (
        "2.0 points",
        "against the choice without a target, Free with its most accurate threshold: 90.0 %, DPD 20.0",
    )
    assert tiles["Thresholds"] == (
        "one per group",
        "favourable from a score of: women -0.50, men never; as trained, from 0",
    )


def test_a_gap_that_the_target_widened_is_pointed_out(answer: Answer) -> None:
    def eod(value: float) -> tuple[bool, str]:
        one = scored(0.88, 0.04, (0.4, 0.75, 0.8))
        fair = candidate("Fair", "groups", replace(one, metrics={**one.metrics, "eod": value}), REPAIR)
        tiles = answer_card(choose(answer.target, [answer.unconstrained, fair]), "yes").tiles
        return next((tile.worse, tile.about) for tile in tiles if "EOD" in tile.name)

    assert eod(0.11)[0] is False
    assert eod(0.3) == (True, "not bounded; wider than the 10.0 without a target")


def test_what_is_a_mean_over_seeds_says_so_and_other_gaps_are_of_the_answers_seed() -> None:
    """The answer's own accuracy, of one seed, may be above the accuracy without a target, a mean over seeds."""

    def two(label: str, kind: Any, *accuracies: float) -> Candidate:
        each = [scored(one, 0.04, (0.4, 0.75, 0.8)) for one in accuracies]
        each = [replace(one, metrics={**one.metrics, "eod": 0.1 * seed}) for seed, one in enumerate(each, start=1)]
        runs = (CandidateRun(seed, "runs/x", {"kind": "none"}, one, one) for seed, one in enumerate(each))
        return Candidate(label, kind, tuple(runs))

    free, fair = two("Free", "accurate", 0.91, 0.87), two("Fair", "groups", 0.90, 0.86)
    answer = replace(choose(Target.parse("dpd <= 0.05"), [free, fair]), chosen=fair, best=fair.runs[0])
    tiles = {tile.name: tile for tile in answer_card(answer, "yes").tiles}
    assert (tiles["Accuracy"].value, tiles["Cost in accuracy"].value) == ("90.0 %", "1.0 points")
    assert tiles["Cost in accuracy"].about.startswith("mean over 2 seeds, against the choice without a target")
    assert any(
        line.startswith("It costs 1.0 points of test accuracy (mean over 2 seeds)") for line in sentences(answer)
    )
    assert tiles["Gap in true “yes” found (EOD)"].about == "not bounded; 10.0 without a target"


def test_who_pays_is_told_in_words_and_in_bars_with_intervals(answer: Answer) -> None:
    card = answer_card(answer, "yes")
    assert card.payers[0] == (
        "women: 40.0 % are predicted “yes” instead of 20.0 %. Of those whose true outcome is “yes”, 75.0 % are found "
        "instead of 50.0 %. 80.0 % of predictions are right instead of 90.0 %."
    )
    assert "50.0 % are predicted “yes”, as before." in card.payers[1]  # of men nothing changes
    women, men = card.groups.rows
    selected, found, _ = women.cells[2:]
    assert (selected.before, selected.value, selected.verdict) == (0.2, 0.4, "+20.0")
    assert selected.interval == wilson(40, 100)
    assert found.before_interval == wilson(20, 40)
    assert men.cells[3].interval is None  # no man's true outcome is favourable


@pytest.mark.parametrize(("dpd", "end", "state"), [(0.04, 0.06, "open"), (0.06, 0.08, "bad")])
def test_a_doubtful_or_missed_target_is_said_to_be_that(dpd: float, end: float, state: str) -> None:
    one = candidate("A", "none", scored(0.9, dpd, (0.2, 0.5, 0.9), end))
    card = answer_card(choose(Target.parse("dpd <= 0.05"), [one]), "yes")
    assert card.state == state
    assert card.model == "A as trained"
    assert card.payers == ["Nobody pays: the answer is also the most accurate model."]


@pytest.mark.parametrize(("dpd", "verdict"), [(0.04, "Met on the held-out rows that chose the model"), (0.06, "Not")])
def test_without_test_rows_the_card_says_that_held_out_rows_chose(dpd: float, verdict: str) -> None:
    one = replace(scored(0.9, dpd, (0.2, 0.5, 0.9)), chose=True)
    only = Candidate("A", "none", (CandidateRun(0, ".", {}, one, untested=one),))
    card = answer_card(choose(Target.parse("dpd <= 0.05"), [only]), "yes")
    assert card.verdict.startswith(verdict) and "test rows," not in card.verdict
    assert card.tiles[0].about.endswith("on 400 held-out rows")


@pytest.mark.parametrize(
    ("target", "words"),
    [("impact_ratio >= 0.8", "at least 80 % as often"), ("equalized_odds <= 0.1", "people of each true outcome")],
)
def test_every_target_is_explained(target: str, words: str) -> None:
    bound = Target.parse(target)
    metric = bound.bounds[0].metric
    one = Scores({"accuracy": 0.9, metric: 0.9}, {metric: 0.9}, 0.95, ())
    repair = {"kind": "single", "single": 0.25, "groups": {"a": []}}
    only = Candidate("A", "single", (CandidateRun(0, ".", repair, one),))
    card = answer_card(choose(bound, [only]), "yes")
    assert words in card.asked[0]
    assert card.tiles[-1].about == "favourable from a score of 0.25; as trained, from 0"


def test_the_page_begins_with_the_answer_and_who_pays(answer: Answer) -> None:
    page = Page(render(study(run("Fair", 3, 0.88, 0.04, 0.1, alpha=None), answers=[answer])))
    order = ["Use Fair with group thresholds.", "The answer against the choice without a target", "Up is more accurate"]
    places = [page.words.index(part) for part in order]
    assert places == sorted(places)
    assert "20.0 → 40.0 (+20.0)" in page.words


def test_a_model_that_missed_the_target_is_not_recommended() -> None:
    missed = candidate("A", "none", scored(0.9, 0.2, (0.2, 0.5, 0.9)))
    card = answer_card(choose(Target.parse("dpd <= 0.05"), [missed]), "yes")
    assert (card.state, card.use, card.model) == ("bad", "Chosen, but not within the target:", "A as trained")


def test_a_degenerate_model_is_not_recommended() -> None:
    trivial = replace(scored(0.9, 0.0, (0.0, 0.0, 0.9)), degenerate="one label is predicted for over 99 % of the rows")
    answer = choose(Target.parse("dpd <= 0.05"), [candidate("A", "none", trivial)])
    card = answer_card(answer, "yes")
    assert (card.state, card.use) == ("bad", "Do not use")
    assert card.verdict.startswith("No model can be recommended: of the nearest one, one label")
    page = Page(render(study(run("A", 3, 0.9, 0.0, 0.1, alpha=None), answers=[answer])))
    assert "Do not use A as trained." in page.words
    assert sentences(answer)[1].startswith("Do not use it: every candidate is degenerate; of this one, one label")


def test_where_the_answer_is_the_most_accurate_model_rates_stand_alone() -> None:
    card = answer_card(
        choose(Target.parse("dpd <= 0.05"), [candidate("A", "none", scored(0.9, 0.01, (0.2, 0.5, 0.9)))]), "yes"
    )
    women = card.groups.rows[0]
    assert women.cells[2].interval == wilson(20, 100)
    assert all(cell.before is None for cell in women.cells)


def test_an_undefined_gap_has_no_unit() -> None:
    lacking = candidate("Free", "none", scored(0.90, math.nan, (0.2, 0.5, 0.9)))
    card = answer_card(choose(Target.parse("dpd <= 0.05"), [lacking]), "yes")
    (gap,) = (one for one in card.tiles if "DPD" in one.name)
    assert (gap.value, gap.about) == ("undefined", "a group lacks the rows to say; target: at most 5")
