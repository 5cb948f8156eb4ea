from __future__ import annotations

import pytest
from tests.report.makers import records, run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.curves import Chart, Panel, charts
from ffalm.report.plots import Plot
from ffalm.report.summary import ALPHA


def curves(panel: Plot) -> Panel:
    assert isinstance(panel, Panel)
    return panel


def drawn(outcome: StudyOutcome) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(outcome)}


def kinds(panel: Plot) -> list[str]:
    return [line.kind for line in panel.lines]


def test_there_is_a_panel_a_metric_and_one_for_the_duals_of_each_algorithm(compared: StudyOutcome) -> None:
    found = drawn(compared)
    assert list(found) == ["metrics", "duals"]
    (heading, metrics), (_, duals) = found["metrics"].blocks[0], found["duals"].blocks[0]
    assert heading == ""
    assert [panel.title for panel in metrics] == ["Accuracy ↑ (%)", "DPD ↓ (points)", "EOD ↓ (points)"]
    assert [panel.title for panel in duals] == ["FFALM"]
    assert [(key.label, key.colour, key.dash) for key in found["metrics"].keys] == [("FedAvg", 0, ""), ("FFALM", 1, "")]
    assert [key.colour for key in curves(duals[0]).curves] == [1]  # as in the other chart
    assert found["duals"].keys == []


def test_lines_are_means_bands_reach_from_the_lowest_run_to_the_highest_and_a_cross_ends_a_run(
    compared: StudyOutcome,
) -> None:
    accuracy = drawn(compared)["metrics"].blocks[0][1][0]
    assert kinds(accuracy) == ["band", "band", "curve", "curve"]
    band, line = accuracy.lines[0], accuracy.lines[2]
    assert list(line.points) == [(1, 60.0), (2, 70.0), (3, 80.0)]
    assert list(band.points) == [(1, 70.0), (2, 80.0), (3, 90.0), (3, 70.0), (2, 60.0), (1, 50.0)]
    assert [(mark.x, mark.y, mark.kind, mark.colour) for mark in accuracy.marks] == [(2, 70.0, "stopped", 1)]


def test_the_page_is_told_where_each_point_is_drawn_and_its_numbers(compared: StudyOutcome) -> None:
    accuracy = drawn(compared)["metrics"].blocks[0][1][0]
    first = curves(accuracy).values()[0]
    assert (first["name"], first["colour"]) == ("FedAvg", 0)
    assert first["points"][2] == [*accuracy.at(3, 80.0), 3, 80.0, 70.0, 90.0]


def test_one_run_has_no_band_and_a_healthy_one_no_cross() -> None:
    history = [{"round": number, "accuracy": 0.5 + number / 10} for number in range(3)]
    found = drawn(study(run("A", history=history)))
    assert list(found) == ["metrics"]
    panel = found["metrics"].blocks[0][1][0]
    assert kinds(panel) == ["curve"]
    assert panel.marks == []


def test_a_study_without_history_has_no_chart() -> None:
    assert charts(study(run("A", 0, 0.8))) == []


def test_each_skew_has_its_own_titled_block() -> None:
    history = [{"round": 1, "accuracy": 0.5}]
    found = drawn(study(*[run("A", history=history, alpha=alpha) for alpha in (0.3, 5.0)]))
    assert [heading for heading, _ in found["metrics"].blocks] == [f"{ALPHA} = 0.3", f"{ALPHA} = 5"]


def test_the_duals_of_many_groups_can_be_told_apart_and_each_algorithm_begins_with_a_whole_line() -> None:
    many = [0.1 * number for number in range(6)]
    runs = [run("FPFL", history=records(many, many, name="duals")), run("FFALM", history=records(1, 2, name="dual"))]
    names = ("Asian", "Black", "Indian", "Other", "White", "Zulu")
    found = drawn(study(*runs, group_names=names, duals_by_group=("FPFL",)))["duals"]
    dashes = {key.label: key.dash for key in found.keys}
    assert dashes["dual of Asian"] == dashes["dual 1"] == ""
    assert len({dashes[f"dual of {name}"] for name in names}) == 6


@pytest.mark.parametrize(("groups", "bands"), [(3, 3), (5, 0)])
def test_bands_do_not_cover_the_duals_of_many_groups(groups: int, bands: int) -> None:
    runs = [run("FPFL", seed, history=records([0.1 + seed] * groups, name="duals")) for seed in (0, 1)]
    panel = drawn(study(*runs))["duals"].blocks[0][1][0]
    assert kinds(panel) == ["band"] * bands + ["curve"] * groups


@pytest.mark.parametrize(("dual", "symlog"), [(-2056.0, True), (0.7, False)])
def test_a_dual_that_blew_up_does_not_flatten_the_others(dual: float, symlog: bool) -> None:
    panel = drawn(study(run("A", history=records(0.1, dual, name="dual"))))["duals"].blocks[0][1][0]
    assert (panel.y_scale == "symlog") == symlog


def test_beyond_the_palette_colours_come_again_with_another_dash() -> None:
    history = [{"round": 1, "accuracy": 0.5}]
    keys = drawn(study(*[run(f"A{index}", history=history) for index in range(8)]))["metrics"].keys
    assert keys[0].colour == keys[7].colour
    assert keys[0].dash != keys[7].dash


def test_panels_stand_in_the_order_in_which_the_algorithms_were_given() -> None:
    runs = [run(label, history=records(0.1, 0.2, name="dual")) for label in ("Second", "First")]
    assert [panel.title for panel in drawn(study(*runs))["duals"].blocks[0][1]] == ["Second", "First"]
