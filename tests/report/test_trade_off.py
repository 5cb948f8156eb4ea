from __future__ import annotations

from typing import Any

from tests.report.makers import run, study
from tests.report.test_summary import COLLAPSED, SOUND

from ffalm.report.trade_off import by_skew, trade_off
from ffalm.targets.answer import Candidate, CandidateRun, Scores, choose
from ffalm.targets.target import Target


def scored(accuracy: float, dpd: float) -> Scores:
    return Scores({"accuracy": accuracy, "dpd": dpd, "eod": 0.1}, {"dpd": dpd}, 0.95, ())


def candidate(label: str, kind: Any, accuracy: float, dpd: float) -> Candidate:
    one = scored(accuracy, dpd)
    return Candidate(label, kind, (CandidateRun(0, ".", {}, one, one),), 0.3)


def test_each_run_is_a_dot_and_each_algorithm_a_mean() -> None:
    runs = [run("A", 0, 0.8, 0.1, 0.2), run("A", 1, 0.9, 0.3, 0.2), run("B", 0, 0.7, 0.05, 0.1)]
    dpd, eod = trade_off(study(*runs), 0.3)
    assert [(mark.kind, round(mark.x), round(mark.y)) for mark in dpd.marks] == [
        ("seed", 10, 80), ("seed", 30, 90), ("mean", 20, 85), ("seed", 5, 70), ("mean", 5, 70),
    ]  # fmt: skip
    assert [mark.about for mark in eod.marks if mark.kind == "mean"] == ["A, mean of 2", "B"]
    (front,) = dpd.lines
    assert front.kind == "front"
    assert [round(x) for x, _ in front.points] == [5, 20, 20]


def test_degenerate_runs_are_crosses_off_the_front_and_diverged_ones_are_absent() -> None:
    lost = run("B", 0, 0.8, 0.0, 0.0, confusion=COLLAPSED)
    runs = [run("A", 0, 0.9, 0.2, 0.2, confusion=SOUND), lost, run("C", 0, diverged="stopped")]
    dpd, _ = trade_off(study(*runs), 0.3)
    assert [mark.kind for mark in dpd.marks] == ["seed", "mean", "degenerate"]
    assert [line.kind for line in dpd.lines] == ["majority"]
    assert dpd.lines[0].points[0][1] == 80.0


def test_a_majority_far_below_the_models_is_a_note() -> None:
    dpd, _ = trade_off(study(run("A", 0, 0.99, 0.1, 0.1, confusion=SOUND)), 0.3)
    assert dpd.lines == []
    assert dpd.note == "Always predicting the most frequent label is 80.0 % accurate, below this plot."


def test_the_answer_its_target_and_models_with_fitted_thresholds_are_marked() -> None:
    found = [candidate("A", "none", 0.9, 0.2), candidate("A", "groups", 0.85, 0.02)]
    answer = choose(Target.parse("dpd <= 0.05"), found)
    dpd, eod = trade_off(study(run("A", 0, 0.9, 0.2, 0.1), answers=[answer]), 0.3)
    star = [mark for mark in dpd.marks if mark.kind == "answer"]
    assert [(round(mark.x), round(mark.y)) for mark in star] == [(2, 85)]
    assert star[0].about == "the answer: A, group thresholds"
    assert [mark.kind for mark in dpd.marks].count("fitted") == 1
    assert [(line.kind, line.points[0][0]) for line in dpd.lines if line.kind == "target"] == [("target", 5.0)]
    assert not [line for line in eod.lines if line.kind == "target"]
    assert "The answer is A." in dpd.about


def test_metrics_are_drawn_against_the_skew_only_where_there_are_several() -> None:
    runs = [run("A", seed, 0.8 + seed / 10, 0.1, 0.1, alpha=alpha) for seed in (0, 1) for alpha in (5.0, 0.3)]
    assert by_skew(study(*runs[::2])) == []
    accuracy, _, _ = by_skew(study(*runs))
    assert [text for _, text in accuracy.x_ticks] == ["0.3", "5"]
    assert [round(mark.y) for mark in accuracy.marks] == [85, 85]
    assert {line.kind for line in accuracy.lines} == {"series", "spread"}


def test_without_any_gap_there_is_no_plot() -> None:
    assert trade_off(study(run("A", 0, 0.8)), 0.3) == []


def test_the_label_of_the_target_is_away_from_that_of_the_majority() -> None:
    answer = choose(Target.parse("dpd <= 0.05"), [candidate("A", "none", 0.81, 0.2)])
    for accuracy, upper in ((0.9, False), (0.3, True)):
        marks = trade_off(study(run("A", 0, accuracy, 0.2, 0.1, confusion=SOUND), answers=[answer]), 0.3)[0]
        (target,) = (line for line in marks.lines if line.kind == "target")
        assert [line.points[0][1] for line in marks.lines if line.kind == "majority"] == [80.0]
        assert (target.points[-1][1] < 0) == upper


def test_a_majority_that_a_note_calls_below_the_plot_is_below_it() -> None:
    (found, _) = trade_off(study(run("A", 0, 0.8026, 0.1, 0.1, confusion=SOUND)), 0.3)
    assert "80.0 % accurate, below this plot" in found.note
    assert found.y_axis[0] > 80.0
