"""The frontier as a picture: where the points lie, and the corner in which the claim would hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ffalm.reproduce.frontier import Judged
from ffalm.reproduce.frontier_figure import family, left_out, specification


def judged(label: str, accuracy: float, dpd: float, eod: float, worst: float = 0.0) -> Judged:
    return Judged("utkface", label, {"accuracy": accuracy, "dpd": dpd, "eod": eod}, worst, seeds=3, diverged=0)


FEDAVG = judged("FedAvg", 0.86, 0.14, 0.30)
FPFL = judged("FPFL", 0.87, 0.08, 0.20)
COLLAPSED = judged("FairFed", 0.50, 0.02, 0.01, worst=0.4)
PRESET = judged("FFALM, paper", 0.80, 0.07, 0.19)
FAIR = judged("FFALM, released-code, penalty 10", 0.855, 0.05, 0.25)
WORSE = judged("FFALM, safe, dual within 0.25, penalty 1", 0.85, 0.15, 0.31)


def layers(panel: int) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """A panel's corner, and its points by algorithm."""
    chart = specification([FEDAVG, FPFL, COLLAPSED, PRESET, FAIR, WORSE])
    assert chart is not None
    corner, points = (layer["data"]["values"] for layer in chart["vconcat"][0]["hconcat"][panel]["layer"])
    return corner[0], {point["algorithm"]: point for point in points}


def test_the_corner_is_fairer_than_every_stable_baseline_for_a_point_of_accuracy() -> None:
    for panel, gap in enumerate((8.0, 20.0)):
        corner, _ = layers(panel)
        assert corner["to"] == pytest.approx(gap)
        assert corner["accuracy"] == pytest.approx(85.0)


def test_points_are_percentages_and_say_how_they_stand() -> None:
    _, points = layers(0)
    assert (points[FAIR.label]["gap"], points[FAIR.label]["accuracy"]) == pytest.approx((5.0, 85.5))
    assert points[FAIR.label]["state"] == points["FPFL"]["state"] == "on the frontier"
    assert points[WORSE.label]["state"] == "beaten by another"


def test_what_lies_far_below_is_named_instead_of_drawn() -> None:
    _, points = layers(0)
    assert "FairFed" not in points
    assert left_out([FEDAVG, COLLAPSED]) == ["Not in the figure: FairFed on UTKFace, far below at 50.00 %."]
    assert left_out([FEDAVG, FPFL, FAIR]) == []


def test_settings_of_one_family_share_a_colour() -> None:
    assert family(FEDAVG) == "FedAvg"
    assert family(FAIR) == "FFALM, released-code"
    assert family(WORSE) == family(judged("FFALM, safe", 0, 0, 0)) == "FFALM, bounded, constant penalty"
    assert (
        family(judged("FFALM, safe, dual within 0.25, penalty 0.5 growing", 0, 0, 0))
        == "FFALM, bounded, growing penalty"
    )


def test_without_validation_metrics_there_is_no_picture() -> None:
    assert specification([judged("FedAvg", math.nan, 0.1, 0.1)]) is None
    unknown = judged("FFALM, paper", 0.86, math.nan, 0.1)
    chart = specification([FEDAVG, unknown])
    assert chart is not None
    assert len(chart["vconcat"][0]["hconcat"][0]["layer"][1]["data"]["values"]) == 1
