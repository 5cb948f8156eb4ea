"""From candidates to an answer: the rule of the choice, the verdict, and what the report says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.report.answer_report import candidates, rows_to_confirm, sentences, to_plain, who_pays
from ffalm.studies.study_answer import StudyAnswer
from ffalm.targets import Target
from ffalm.targets.answer import Answer, Candidate, CandidateRun, GroupRates, Scores, choose
from ffalm.targets.candidates import LEVELS, FinishedRun, answer_of, candidates_of, judged, kinds_of, lagrangians
from ffalm.targets.rate_table import Costs

TARGET = Target.parse("dpd <= 0.05")


def scores(accuracy: float, dpd: float, end: float | None = None, degenerate: str = "") -> Scores:
    return Scores({"accuracy": accuracy, "dpd": dpd, "eod": 0.1}, {"dpd": end or dpd}, 0.8, (), degenerate)


def candidate(label: str, *held_out: Scores) -> Candidate:
    chose = (replace(one, chose=True) for one in held_out)
    return Candidate(label, "none", tuple(CandidateRun(seed, label, {}, one) for seed, one in enumerate(chose)))


def test_the_most_accurate_within_the_target_in_every_seed_is_chosen() -> None:
    free = candidate("free", scores(0.9, 0.2), scores(0.9, 0.2))
    once = candidate("within once", scores(0.88, 0.04), scores(0.88, 0.06))
    within = candidate("within", scores(0.85, 0.05), scores(0.86, 0.04))
    worse = candidate("worse", scores(0.80, 0.0), scores(0.80, 0.0))
    answer = choose(TARGET, [free, once, within, worse])
    assert answer.chosen is within
    assert answer.unconstrained is free
    assert answer.best.seed == 1
    assert repr(answer) == "Answer(dpd <= 0.05: met in the sample, within, none)"  # there are no test rows


def test_a_confidence_bound_beyond_the_target_is_not_within_it() -> None:
    unsure, sure = candidate("unsure", scores(0.9, 0.04, 0.06)), candidate("sure", scores(0.85, 0.03, 0.05))
    assert choose(TARGET, [unsure, sure]).chosen is sure


def test_if_none_is_within_the_nearest_is_chosen_and_said_to_be_that() -> None:
    far, near = candidate("far", scores(0.9, 0.3)), candidate("near", scores(0.8, 0.1))
    answer = choose(TARGET, [far, near])
    assert answer.chosen is near
    assert answer.verdict == "not met"
    assert any("comes nearest" in sentence for sentence in sentences(answer))


def test_a_degenerate_candidate_is_never_chosen_over_another() -> None:
    trivial = candidate("trivial", scores(0.95, 0.0, degenerate="one label"))
    answer = choose(TARGET, [trivial, candidate("near", scores(0.8, 0.1))])
    assert answer.chosen.label == "near"
    assert any(sentence.startswith("Only degenerate candidates are within") for sentence in sentences(answer))
    with pytest.raises(UserError, match="no finished run"):
        choose(TARGET, [])


@pytest.mark.parametrize(
    ("dpd", "end", "verdict"),
    [(0.03, 0.05, "met with confidence"), (0.04, 0.06, "met in the sample"), (0.06, 0.08, "not met")],
)
def test_verdicts(dpd: float, end: float, verdict: str) -> None:
    assert scores(0.9, dpd, end).verdict(TARGET) == verdict


def test_rows_that_chose_never_confirm() -> None:
    assert replace(scores(0.9, 0.03, 0.05), chose=True).verdict(TARGET) == "met in the sample"
    assert replace(scores(0.9, 0.06, 0.08), chose=True).verdict(TARGET) == "not met"


@pytest.mark.parametrize("rows", [400, 40_000])
@pytest.mark.parametrize("confidence", [0.5, 0.8, None])
def test_without_test_rows_bounds_are_at_95_percent_and_nothing_is_met_with_confidence(
    rows: int, confidence: float | None
) -> None:
    run = finished("A", rows, 0.5)
    untested = replace(run, scores={"validation": run.scores["validation"]})
    answer = answer_of([untested], TARGET, "groups", ("men", "women"), confidence)
    assert answer.scored.level == 0.95 and answer.scored.metrics == answer.best.validation.metrics
    assert answer.scored.ends["dpd"] > answer.best.validation.ends["dpd"]  # the choice asks for less
    assert answer.verdict == "met in the sample"
    told = sentences(answer)
    assert not any("Test rows were used" in sentence for sentence in told)
    assert any(sentence.startswith("There are no test rows: the held-out rows of these scores") for sentence in told)
    assert "with 95 % confidence" in told[0] and "on held-out rows" in told[0]
    enough = answer.scored.ends["dpd"] <= 0.05  # rows are, and only test rows are missing
    assert bool(rows_to_confirm(TARGET, answer.scored)) == (not enough)


def test_an_undefined_gap_is_not_called_unmet_and_the_group_without_rows_is_named() -> None:
    unknown = of_groups(math.nan, math.nan, men=68.0, women=52.0, x=0.0)
    assert unknown.verdict(TARGET) == "cannot be judged"
    chosen = Candidate("one", "groups", (CandidateRun(0, "run", {}, scores(0.9, 0.03), unknown),))
    told = sentences(choose(TARGET, [chosen]))
    assert told[0].endswith("DPD undefined. dpd <= 0.05: cannot be judged.")
    assert any("DPD is undefined on test rows: x has none there. --set data.min_group_size=30" in one for one in told)
    assert not any("--confidence" in one or "make the choice surer" in one for one in told)
    both, values = Target.parse("dpd <= 0.05, eod <= 0.1"), {"dpd": math.nan, "eod": 0.2}
    assert replace(unknown, metrics=values, ends=values).verdict(both) == "not met"


def test_rows_to_confirm_a_gap_grow_with_the_square_of_the_missing_precision() -> None:
    """The bound is 0.04 above the gap and may be 0.02: four times the rows."""
    assert scores(0.9, 0.03, 0.07).rows_factor(TARGET) == pytest.approx(4)
    assert scores(0.9, 0.06, 0.07).rows_factor(TARGET) is None


def of_groups(dpd: float, end: float, **rows: float) -> Scores:
    groups = tuple(GroupRates(name, count, 0.5, 0.5, 0.9) for name, count in rows.items())
    return replace(scores(0.9, dpd, end), groups=groups)


def test_rows_for_a_margin_are_those_at_which_equal_rates_are_within_the_target() -> None:
    """The bound is 0.10 above the gap and may be 0.05, or half of that where the gap is to have the other half."""
    few = of_groups(0.2, 0.3, men=900.0, women=100.0)
    assert few.margin_factor(TARGET) == pytest.approx(4)
    assert few.margin_factor(TARGET, share=0.5) == pytest.approx(16)
    assert scores(0.9, 0.02, 0.03).margin_factor(TARGET) == pytest.approx(0.04)
    assert few.smallest is not None and few.smallest.group == "women"
    assert scores(0.9, 0.1).smallest is None


def test_answers_say_how_many_rows_of_the_smallest_group_are_needed() -> None:
    far = choose(TARGET, [candidate("far", of_groups(0.2, 0.3, men=900.0, women=100.0))])
    assert any(
        "at 80 % confidence on so few held-out rows: it takes about 400 instead of 100 of women" in sentence
        for sentence in sentences(far)
    )
    near = of_groups(0.03, 0.07, men=900.0, women=100.0)
    missed = Candidate(
        "missed", "none", (CandidateRun(0, ".", {}, scores(0.9, 0.04), of_groups(0.06, 0.1, men=90.0, women=10.0)),)
    )
    assert any(
        "It was within the target on held-out rows and is not on test rows: --confidence 0.95 leaves a larger margin, "
        "and more rows of women, the smallest group (10 there), make the choice surer." in sentence
        for sentence in sentences(choose(TARGET, [missed]))
    )
    assert rows_to_confirm(TARGET, near) == [
        "To confirm gaps of this size with 95 % confidence takes about 4.0 times as many rows (4,000 instead of 1,000; "
        "of women, the smallest group, 400 instead of 100), in the same shares."
    ]
    assert rows_to_confirm(TARGET, of_groups(0.06, 0.07, men=9.0)) == []
    assert rows_to_confirm(TARGET, of_groups(0.0499, 0.07, men=9.0)) == [
        "A gap so near its bound takes over 100 times as many rows to confirm: a stricter target leaves a margin."
    ]


@pytest.mark.parametrize(("dpd", "low", "open_"), [(0.06, 0.04, True), (0.09, 0.06, False), (0.03, 0.01, False)])
def test_a_gap_whose_interval_reaches_the_bound_does_not_rule_the_target_out(
    dpd: float, low: float, open_: bool
) -> None:
    found = replace(scores(0.9, dpd, dpd + 0.1), others={"dpd": low}, level=0.95)
    told = sentences(choose(TARGET, [candidate("A", found)]))
    wanted = "These rows are too few to rule the target out: DPD may be as low as 4.0 (95 % confidence)."
    assert (wanted in told) == open_
    assert any("rule the target out" in sentence for sentence in told) == open_


def test_a_gap_that_three_selected_rows_make_does_not_rule_the_target_out() -> None:
    """All three of a group are selected: the gap cannot be much larger, but far smaller."""
    tally = Tally.of_counts(torch.tensor([[[28, 0], [22, 0]], [[22, 1], [28, 2]]]), 0)
    found = judged(tally, TARGET, 1, ("a", "d"))
    assert found.metrics["dpd"] == pytest.approx(0.5)
    assert found.ends["dpd"] < 0.6 and found.others["dpd"] == tally.interval("dpd", 0.9)[0]
    told = sentences(choose(TARGET, [candidate("A", found)]))
    assert any("DPD may be as low as 1.9 (95 % confidence)." in sentence for sentence in told)


def test_the_lagrangians_of_a_target_aim_at_it_and_at_half_of_it() -> None:
    assert lagrangians(Target.parse("dpd <= 0.05, eod <= 0.1")) == {
        "lagrangian-dp-eo-0.05": {"name": "lagrangian", "constraint": "dp,eo", "tolerance": 0.05},
        "lagrangian-dp-eo-0.025": {"name": "lagrangian", "constraint": "dp,eo", "tolerance": 0.025},
    }


def test_repair_settings_include_the_simpler_kinds() -> None:
    assert kinds_of("none") == ("none",)
    assert kinds_of("groups") == ("none", "accurate", "single", "groups")


def finished(label: str, rows: int, shift: float, seed: int = 0) -> FinishedRun:
    """A run whose scores are shifted between two groups."""
    parts = {}
    for place, part in enumerate(("validation", "test")):
        draws = torch.Generator().manual_seed(1000 * seed + place)
        y = torch.randint(0, 2, (rows,), generator=draws)
        group = torch.randint(0, 2, (rows,), generator=draws)
        noise = torch.randn(rows, generator=draws)
        parts[part] = ScoreHistogram.of(noise + 2.0 * y - 1 + shift * group, torch.zeros_like(y), y, group, (2, 2), 1)
    return FinishedRun(label, seed, None, f"runs/{label}-{seed}", parts)


@pytest.fixture(scope="module")
def answer() -> Answer:
    runs = [finished(label, 8000, shift, seed) for label, shift in (("A", 0.8), ("B", 0.4)) for seed in range(3)]
    return answer_of(runs, TARGET, "groups", ("men", "women"))


def test_thresholds_bring_a_shifted_model_within_the_target_on_other_rows(answer: Answer) -> None:
    assert answer.chosen.kind == "groups"
    assert answer.chosen.held(TARGET) == 3
    as_trained = next(one for one in answer.candidates if one.kind == "none")
    assert answer.test["dpd"] <= 0.05 < as_trained.mean("dpd")
    assert answer.notes == ()


def test_the_report_names_the_model_its_cost_and_who_pays(answer: Answer) -> None:
    told = sentences(answer)
    assert told[0].startswith(f"{answer.chosen.label}, group thresholds (seed {answer.best.seed}): accuracy ")
    assert any("the target held on test rows in 3 of 3" in sentence for sentence in told)
    assert any("forbid by law" in sentence and "use_group_as_feature=false" in sentence for sentence in told)
    assert [row["Group"] for row in who_pays(answer).records()] == ["men", "women"]
    assert len(candidates(answer).rows) == len(answer.candidates) == 8
    assert candidates(answer, brief=True).records()[0]["Algorithm"] == answer.chosen.label
    assert "the same for all rows: the former is chosen for accuracy alone" in candidates(answer).caption
    assert repr(answer).startswith(f"Answer({answer.target}: ") and len(repr(answer)) < 200
    assert repr(answer.chosen).startswith(f"Candidate({answer.chosen.label}, ") and len(repr(answer.chosen)) < 100
    of_study = StudyAnswer.of(answer)
    assert of_study.explain() == "\n".join(told)
    shown = of_study._repr_html_()
    assert "<table" in shown and answer.chosen.label in shown and "women" in shown
    plain = to_plain(answer)
    assert plain["run"] == answer.best.run
    assert plain["repair"]["groups"].keys() == {"men", "women"}


def test_a_mean_ratio_is_written_as_a_ratio() -> None:
    runs = [finished("A", 8000, 0.8, seed) for seed in range(2)]
    answer = answer_of(runs, Target.parse("impact_ratio >= 0.8"), "groups", ("men", "women"))
    mean = answer.chosen.mean("impact_ratio")
    assert any(f"mean impact ratio {mean:.2f};" in sentence for sentence in sentences(answer))


def test_where_rows_are_few_the_margin_is_given_up_and_said_to_be() -> None:
    answer = answer_of([finished("A", 150, 0.5)], Target.parse("eod <= 0.05"), "groups", ("men", "women"))
    assert "too few for a margin at 80%" in answer.notes[0]
    assert "the smallest group, instead of 7" in answer.notes[0]
    assert not answer.chosen.degenerate


@pytest.mark.parametrize(("rows", "seed"), [(rows, seed) for rows in (60, 150, 250, 1500) for seed in range(5)])
def test_the_margin_is_the_widest_that_costs_at_most_a_point(rows: int, seed: int) -> None:
    runs, target = [finished("A", rows, 0.5, seed)], Target.parse("eod <= 0.05")
    of_level = {level: answer_of(runs, target, "groups", ("men", "women"), level) for level in LEVELS}
    plain = of_level[0.5].chosen
    expected = next(
        level
        for level, one in of_level.items()
        if level == 0.5 or (one.chosen.within(target) == 1 and one.chosen.merit >= plain.merit - 0.01)
    )
    found = answer_of(runs, target, "groups", ("men", "women"))
    assert (found.chosen.kind, found.best.repair) == (
        of_level[expected].chosen.kind,
        of_level[expected].best.repair,
    )
    leaves = {0.8: "", 0.5: "the choice leaves none"}.get(expected, f"the choice leaves one at {expected:.0%}")
    assert any(leaves in note for note in found.notes) if leaves else found.notes == ()


def test_a_margin_that_was_asked_for_and_costs_more_than_a_point_says_what_it_costs() -> None:
    runs, target = [finished("A", 400, 0.5)], Target.parse("eod <= 0.05")
    sure, plain = (answer_of(runs, target, "groups", ("men", "women"), level) for level in (0.95, 0.5))
    cost = 100 * (plain.chosen.merit - sure.chosen.merit)
    assert cost > 1
    assert sure.notes[0].startswith(f"The margin at 95% confidence costs {cost:.1f} points of accuracy")
    assert plain.notes == ()
    surest = answer_of(runs, target, "groups", ("men", "women"), 0.999)
    assert surest.notes[0].startswith("The margin at 99.9% confidence")


def test_what_a_margin_costs_is_told_in_costs_where_they_are_given() -> None:
    runs, target = [finished("A", 400, 0.5)], Target.parse("eod <= 0.05")
    answer = answer_of(runs, target, "groups", ("men", "women"), 0.95, Costs(2.0, 1.0))
    assert " a row on the rows of the choice" in answer.notes[0]


def test_a_margin_that_costs_little_is_not_mentioned() -> None:
    runs = [finished("A", 8000, 0.4)]
    assert answer_of(runs, TARGET, "groups", ("men", "women"), 0.95).notes == ()


def test_kinds_without_a_feasible_choice_are_noted() -> None:
    target = Target.parse("accuracy_parity <= 0")
    found, notes = candidates_of([finished("A", 60, 0.5)], target, "groups", ("a", "b"), 0.9)
    assert {one.kind for one in found} == {"none", "accurate", "single"}
    assert "no group thresholds are within accuracy_parity <= 0" in notes[0]


def test_a_note_on_a_missing_single_threshold_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.targets.candidates._fitted", lambda run, target, kind, costs, level: None)
    _, notes = candidates_of([finished("A", 60, 0.5)], TARGET, "single", ("a", "b"), 0.9)
    assert f"A: no threshold is within {TARGET} on the rows of the choice." in notes
