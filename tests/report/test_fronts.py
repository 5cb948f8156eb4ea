"""Fronts, their hypervolume and the point that a bound asks for, by hand-worked numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffalm.errors import UserError
from ffalm.outcome import Outcome
from ffalm.report.front_report import chart, chosen, points, tidy, volumes, write_fronts
from ffalm.report.fronts import Front, best_at, dominates, fronts_of, hypervolume
from ffalm.targets.target import Target


def run(label: str, gap: float, accuracy: float, seed: int = 0, **changes: Any) -> Outcome:
    """A run whose held-out rows show a gap that is larger by a point; 60 of 100 test rows have the usual label."""
    history = [{"round": 1, "accuracy": accuracy - 0.1, "dpd": gap + 0.01}] * 2
    counts = [[[30, 30], [10, 10]], [[0, 0], [10, 10]]]
    values: dict[str, Any] = {
        "label": label, "algorithm": label, "seed": seed, "alpha": 5.0, "test": {"accuracy": accuracy, "dpd": gap},
        "intervals": {}, "history": history, "seconds": 1.0, "confusion": counts,
    }  # fmt: skip
    return Outcome(**{**values, **changes})


def two_fronts(seeds: int = 2) -> list[Front]:
    """Three points of one algorithm, of which the last is dominated, and one of another."""
    means = {"l-0": (0.02, 0.80), "l-1": (0.10, 0.85), "l-2": (0.12, 0.84), "FedAvg": (0.20, 0.86)}
    members: dict[str, tuple[str, dict[str, Any]]] = {
        "l-0": ("Lagrangian", {"tolerance": 0.0}),
        "l-1": ("Lagrangian", {"tolerance": 0.1}),
        "l-2": ("Lagrangian", {"tolerance": 0.2}),
        "FedAvg": ("FedAvg", {}),
    }
    runs = [run(label, *place, seed) for label, place in means.items() for seed in range(seeds)]
    return fronts_of(runs, members, "dpd")


def test_one_point_dominates_another_if_it_is_no_worse_and_somewhere_better() -> None:
    assert dominates((1, 2), (1, 1)) and not dominates((1, 1), (1, 1)) and not dominates((2, 0), (1, 1))


def test_the_hypervolume_is_the_share_of_the_box() -> None:
    assert hypervolume([(0.0, 1.0)], (0.2, 0.5)) == pytest.approx(1.0)
    assert hypervolume([(0.1, 0.75)], (0.2, 0.5)) == pytest.approx(0.25)
    stairs = [(0.1, 0.75), (0.05, 0.6), (0.15, 0.7)]  # the last is dominated
    assert hypervolume(stairs, (0.2, 0.5)) == pytest.approx((0.15 * 0.1 + 0.1 * 0.15) / 0.1)
    assert hypervolume([(0.3, 0.9), (0.1, 0.4), (math.nan, 0.9)], (0.2, 0.5)) == 0


def test_the_hypervolume_is_the_share_of_random_places_that_are_dominated() -> None:
    draws = np.random.default_rng(0)
    places = list(zip(draws.uniform(0, 0.3, 6), draws.uniform(0.4, 1, 6), strict=True))
    gap, accuracy = draws.uniform(0, 0.25, 40000), draws.uniform(0.5, 1, 40000)
    dominated = np.any([(gap >= own[0]) & (accuracy <= own[1]) for own in places], axis=0)
    assert hypervolume(places, (0.25, 0.5)) == pytest.approx(dominated.mean(), abs=0.01)


def test_dominated_points_are_not_on_the_front() -> None:
    first, second = two_fronts()
    assert [one.label for one in first.best] == ["l-0", "l-1"] and [one.label for one in second.best] == ["FedAvg"]
    assert first.reference == pytest.approx((0.20, 0.6))  # the largest gap, and the most frequent label's share
    assert first.hypervolume == pytest.approx((0.18 * 0.20 + 0.10 * 0.05) / (0.20 * 0.4))
    assert first.interval is None and two_fronts(1)[0].interval is None  # seeds that are alike have no spread
    moved = fronts_of([run("a", 0.1, 0.8), run("a", 0.1, 0.82, 1), run("b", 0.2, 0.6)], {"a": ("A", {})}, "dpd")[0]
    assert moved.hypervolumes == pytest.approx([0.5 * 0.5, 0.5 * 0.55])
    assert moved.interval == pytest.approx((0.2625 - 12.706205 * 0.0125, 0.2625 + 12.706205 * 0.0125))


def test_runs_that_diverged_leave_their_point_off_the_front() -> None:
    runs = [run("a", 0.1, 0.9), run("b", 0.0, 0.95), run("b", 0.0, 0.95, 1, diverged="its loss is no longer finite")]
    (front,) = fronts_of(runs, {"a": ("A", {"x": 1}), "b": ("A", {"x": 2})}, "dpd")
    assert [one.label for one in front.best] == ["a"]
    assert front.hypervolumes == pytest.approx([hypervolume([(0.1, 0.9)], front.reference)])
    (alone,) = fronts_of(runs[2:], {"b": ("A", {})}, "dpd")
    assert alone.hypervolumes == [] and math.isnan(alone.hypervolume)
    assert "1 of 2 diverged" in {one.note for one in points([front]).rows}


def test_a_degenerate_point_is_never_on_the_front_nor_chosen() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    outcomes = [run("a", 0.1, 0.9), run("b", 0.0, 0.95, confusion=everybody)]
    (front,) = fronts_of(outcomes, {name: ("A", {"x": name}) for name in "ab"}, "dpd")
    assert [one.label for one in front.best] == ["a"]
    assert best_at([front], Target.parse("dpd <= 0.2"))[0].label == "a"
    (alone,) = fronts_of(outcomes[:1], {"a": ("A", {"x": "a"})}, "dpd")
    assert front.hypervolumes == pytest.approx([hypervolume([(0.1, 0.9)], front.reference)])
    assert alone.reference[0] == front.reference[0]
    assert "degenerate: one label" in points([front]).rows[1].note


def test_the_most_accurate_point_within_a_bound_is_chosen_on_held_out_rows() -> None:
    fronts, bound = two_fronts(), Target.parse("dpd <= 0.1")
    best, part = best_at(fronts, bound)
    assert (best.label, part) == ("l-0", "held_out")  # l-1 is at 0.11 there
    assert chosen(best, part, bound).endswith("accuracy 80.0 %, DPD 2.0; the bound held there in 2 of 2 seeds.")
    with pytest.raises(UserError, match=r"No point of the sweep meets dpd <= 0.01; the nearest is l-0 with dpd 0.030"):
        best_at(fronts, Target.parse("dpd <= 0.01"))


def test_a_point_is_shown_without_the_rounds_of_its_runs() -> None:
    assert len(repr(two_fronts()[0].points[0])) < 200


def test_without_held_out_rows_test_rows_choose_and_say_so() -> None:
    runs = [run("a", 0.1, 0.9, history=[{"round": 1}])]
    best, part = best_at(fronts_of(runs, {"a": ("A", {})}, "dpd"), Target.parse("dpd <= 0.2"))
    assert part == "test" and " on test rows: a" in chosen(best, part, Target.parse("dpd <= 0.2"))


def test_tables_and_chart_have_every_point(tmp_path: Path) -> None:
    fronts = two_fronts()
    assert [one.cells[0].value for one in points(fronts).rows] == [
        "tolerance 0.0", "tolerance 0.1", "tolerance 0.2", "as it is",
    ]  # fmt: skip
    assert [one.cells[0].bold for one in points(fronts).rows] == [True, True, False, True]
    assert [one.cells[2].value for one in volumes(fronts).rows] == [2, 1]
    records = tidy(fronts).records()
    assert len(records) == 8 and records[0]["test_dpd"] == 0.02 and records[-1]["tolerance"] is None
    drawn = chart(fronts)
    assert drawn is not None
    (_, (plot,)) = drawn.blocks[0]
    assert [mark.kind for mark in plot.marks] == ["mean", "mean", "fitted", "mean"]  # the third is not on the front
    assert (plot.marks[0].x, plot.marks[0].y) == pytest.approx((2.0, 80.0))
    written = write_fronts(fronts, tmp_path)
    assert sorted(written) == ["fronts.csv", "fronts.md", "fronts.svg"]
    text = written["fronts.svg"].read_text(encoding="utf-8")
    assert "DPD (points)" in text and text.count("<title>") == 4
