from __future__ import annotations

import math
from typing import Any

import pytest
from tests.report.makers import records, run, study

from ffalm.outcome import StudyOutcome
from ffalm.report import series
from ffalm.report.series import TITLES, Point, dual_points, metric_points

ACCURACY = TITLES["accuracy"]


def line(points: list[Point], algorithm: str, **named: str) -> list[Point]:
    wanted = {"algorithm": algorithm, **named}
    return [point for point in points if all(point[key] == value for key, value in wanted.items())]


def test_mean_and_range_over_seeds_are_those_worked_by_hand(compared: StudyOutcome) -> None:
    found = line(metric_points(compared), "FedAvg", metric=ACCURACY)
    assert [(point["round"], point["mean"], point["low"], point["high"], point["runs"]) for point in found] == [
        (1, 60.0, 50.0, 70.0, 2),
        (2, 70.0, 60.0, 80.0, 2),
        (3, 80.0, 70.0, 90.0, 2),
    ]


def test_a_diverged_run_leaves_at_its_last_finite_value_which_is_marked(compared: StudyOutcome) -> None:
    found = line(metric_points(compared), "FFALM", metric=ACCURACY)
    assert [(point["mean"], point["runs"], point.get("stopped")) for point in found] == [
        (50.0, 2, None),
        (60.0, 2, 70.0),
        (60.0, 1, None),
    ]


def test_a_round_that_nobody_scored_is_left_out() -> None:
    history = [
        {"round": 1, "accuracy": 0.5},
        {"round": 5, "accuracy": 0.7},
        {"round": 6, "accuracy": math.nan},
    ]
    found = metric_points(study(run("A", history=history)))
    assert [point["round"] for point in found] == [1, 5]


def test_duals_that_are_one_a_group_are_named_by_it() -> None:
    runs = [run(label, history=records([0.1, 0.2, 0.3], name="duals")) for label in ("FPFL", "Other")]
    points = dual_points(study(*runs, group_names=("Asian", "Black", "White"), duals_by_group=("FPFL",)))
    named = [(point["algorithm"], point["component"], point["mean"]) for point in points]
    assert named[:3] == [("FPFL", "dual of Asian", 0.1), ("FPFL", "dual of Black", 0.2), ("FPFL", "dual of White", 0.3)]
    assert [component for label, component, _ in named if label == "Other"] == ["dual 1", "dual 2", "dual 3"]


def test_duals_that_compare_the_first_group_with_each_other_are_named_by_both() -> None:
    groups, algorithms = ("Asian", "Black", "White"), ("FFALM",)
    runs = [run("FFALM", history=records([0.1, 0.2], name="dual"))]
    points = dual_points(study(*runs, group_names=groups, duals_by_group=algorithms))
    assert [point["component"] for point in points] == ["dual of Asian against Black", "dual of Asian against White"]
    one = run("Lagrangian", 0, 0.8, history=[{"round": 1, "duals": [[0.1, 0.2, 0.0]]}])
    points = dual_points(study(one, group_names=("Asian", "Black", "?"), excluded=1, duals_by_group=("Lagrangian",)))
    assert [point["component"] for point in points] == ["dual of Asian", "dual of Black", "dual of ?"]
    single = [run("FFALM", history=records(0.5, name="dual"))]
    points = dual_points(study(*single, group_names=groups[:2], duals_by_group=algorithms))
    assert [point["component"] for point in points] == ["dual 1"]


def test_a_dual_may_be_a_number_a_list_or_absent() -> None:
    runs = [
        run("One", history=records(0.5, 1.0, name="dual")),
        run("Two", history=records([0.1, 0.2], [0.3, 0.4], name="duals")),
        run("None", history=records(0.5)),
    ]
    points = dual_points(study(*runs))
    assert [point["mean"] for point in line(points, "One")] == [0.5, 1.0]
    assert [point["mean"] for point in line(points, "Two", component="dual 2")] == [0.2, 0.4]
    assert line(points, "None") == []


def test_long_histories_are_thinned_and_keep_both_ends_and_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 10)
    healthy = run("A", 0, history=records(*[0.5] * 1000))
    stopped = run("A", 1, history=records(*[0.5] * 777), diverged="x")
    rounds = [point["round"] for point in metric_points(study(healthy, stopped))]
    assert len(rounds) == 11
    assert {1, 777, 1000} <= set(rounds)


def test_many_lines_are_thinned_further_so_that_the_page_stays_small() -> None:
    runs = [run(f"A{index}", history=records(*[0.5] * 300), alpha=alpha) for index in range(20) for alpha in (1.0, 5.0)]
    assert len(metric_points(study(*runs))) <= 1.1 * max(series.ALL_POINTS, 40 * series.MIN_POINTS)


@pytest.mark.parametrize("value", [None, "high", [0.1]])
def test_a_metric_that_is_no_number_draws_nothing(value: Any) -> None:
    assert metric_points(study(run("A", history=records(value)))) == []
