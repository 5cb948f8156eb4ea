"""The frontier as a picture: where the points lie, and the corner in which the claim would hold."""

from __future__ import annotations

import math

import pytest

from ffalm.report.plots import Mark, Plot
from ffalm.reproduce.frontier import Judged
from ffalm.reproduce.frontier_figure import chart, family, left_out


def judged(label: str, accuracy: float, dpd: float, eod: float, worst: float = 0.0) -> Judged:
    return Judged("utkface", label, {"accuracy": accuracy, "dpd": dpd, "eod": eod}, worst, seeds=3, diverged=0)


FEDAVG = judged("FedAvg", 0.86, 0.14, 0.30)
FPFL = judged("FPFL", 0.87, 0.08, 0.20)
COLLAPSED = judged("FairFed", 0.50, 0.02, 0.01, worst=0.4)
PRESET = judged("FFALM, paper", 0.80, 0.07, 0.19)
FAIR = judged("FFALM, released-code, penalty 10", 0.855, 0.05, 0.25)
WORSE = judged("FFALM, safe, dual within 0.25, penalty 1", 0.85, 0.15, 0.31)


def panels() -> tuple[Plot, Plot]:
    """Against DPD and against EOD."""
    drawn = chart([FEDAVG, FPFL, COLLAPSED, PRESET, FAIR, WORSE])
    assert drawn is not None
    heading, (dpd, eod) = drawn.blocks[0]
    assert heading == "UTKFace"
    return dpd, eod


def marks(panel: Plot) -> dict[str, Mark]:
    return {mark.about: mark for mark in panel.marks}


def test_the_corner_is_fairer_than_every_stable_baseline_for_a_point_of_accuracy() -> None:
    for panel, gap in zip(panels(), (8.0, 20.0), strict=True):
        corner = panel.lines[0]
        assert corner.kind == "band"
        assert corner.points[1] == pytest.approx((gap, 85.0))
        assert corner.points[2:] == [(pytest.approx(gap), math.inf), (0.0, math.inf)]


def test_points_are_percentages_and_say_how_they_stand() -> None:
    points = marks(panels()[0])
    assert (points[FAIR.label].x, points[FAIR.label].y) == pytest.approx((5.0, 85.5))
    assert points[FAIR.label].kind == points["FPFL"].kind == "mean"  # on the frontier
    assert points[WORSE.label].kind == "fitted"  # beaten by another


def test_what_lies_far_below_is_named_instead_of_drawn() -> None:
    assert "FairFed" not in marks(panels()[0])
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
    assert chart([judged("FedAvg", math.nan, 0.1, 0.1)]) is None
    unknown = judged("FFALM, paper", 0.86, math.nan, 0.1)
    drawn = chart([FEDAVG, unknown])
    assert drawn is not None
    assert [len(panel.marks) for panel in drawn.blocks[0][1]] == [1, 1]
