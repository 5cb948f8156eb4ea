from __future__ import annotations

from typing import Any

import pytest
from tests.report.makers import records, run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.drawing import PALETTE
from ffalm.report.summary import ALPHA

pytest.importorskip("altair")
from ffalm.report.curves import interactive, specifications, stacked


def marks(chart: dict[str, Any], block: int = 0) -> list[str]:
    return [layer["mark"]["type"] for layer in chart["vconcat"][block]["spec"]["layer"]]


def colours(chart: dict[str, Any]) -> dict[str, str]:
    scale = chart["vconcat"][0]["spec"]["layer"][0]["encoding"]["color"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def named_data(part: Any) -> set[str]:
    """Every data set that a specification refers to by name."""
    if isinstance(part, dict):
        here = {part["data"]["name"]} if isinstance(part.get("data"), dict) and "name" in part["data"] else set()
        return here.union(*map(named_data, part.values()))
    return set().union(*map(named_data, part)) if isinstance(part, list) else set()


def test_metrics_and_duals_are_drawn_with_a_band_a_line_and_a_cross_for_the_divergence(compared: StudyOutcome) -> None:
    charts = specifications(compared, validate=True)
    assert list(charts) == ["metrics", "duals"]
    assert marks(charts["metrics"]) == ["area", "line", "point"]


def test_an_algorithm_keeps_its_colour_in_every_chart(compared: StudyOutcome) -> None:
    charts = specifications(compared)
    assert colours(charts["metrics"]) == {"FedAvg": PALETTE[0], "FFALM": PALETTE[1]}
    assert colours(charts["duals"]) == colours(charts["metrics"])


def test_one_run_has_no_band_and_a_healthy_one_no_cross() -> None:
    history = [{"round": number, "accuracy": 0.5 + number / 10} for number in range(3)]
    charts = specifications(study(run("A", history=history)))
    assert list(charts) == ["metrics"]
    assert marks(charts["metrics"]) == ["line"]


def test_a_study_without_history_has_no_chart() -> None:
    assert specifications(study(run("A", 0, 0.8))) == {}


def test_each_skew_has_its_own_titled_block() -> None:
    history = [{"round": 1, "accuracy": 0.5}]
    skews = study(*[run("A", history=history, alpha=alpha) for alpha in (0.3, 5.0)])
    chart = specifications(skews, validate=True)["metrics"]
    assert [block["title"] for block in chart["vconcat"]] == [
        f"{ALPHA} = 0.3",
        f"{ALPHA} = 5",
    ]


def test_the_duals_of_many_groups_can_be_told_apart_and_each_algorithm_begins_with_a_whole_line() -> None:
    many = [0.1 * number for number in range(6)]
    runs = [run("FPFL", history=records(many, many, name="duals")), run("FFALM", history=records(1, 2, name="dual"))]
    names = ("Asian", "Black", "Indian", "Other", "White", "Zulu")
    charted = specifications(study(*runs, group_names=names, duals_by_group=("FPFL",)))["duals"]
    line = next(part for part in charted["vconcat"][0]["spec"]["layer"] if part["mark"]["type"] == "line")
    scale = line["encoding"]["strokeDash"]["scale"]
    dashes = dict(zip(scale["domain"], map(tuple, scale["range"]), strict=True))
    assert dashes["dual of Asian"] == dashes["dual 1"] == (1, 0)
    assert len({dashes[f"dual of {name}"] for name in names}) == 6


@pytest.mark.parametrize(("groups", "marks"), [(3, ["area", "line"]), (5, ["line"])])
def test_bands_do_not_cover_the_duals_of_many_groups(groups: int, marks: list[str]) -> None:
    runs = [run("FPFL", seed, history=records([0.1 + seed] * groups, name="duals")) for seed in (0, 1)]
    layers = specifications(study(*runs))["duals"]["vconcat"][0]["spec"]["layer"]
    assert [layer["mark"]["type"] for layer in layers] == marks


def test_a_dual_that_blew_up_does_not_flatten_the_others() -> None:
    def scale(dual: float) -> dict[str, Any]:
        history = [{"round": 1, "dual": 0.1}, {"round": 2, "dual": dual}]
        chart = specifications(study(run("A", history=history)))["duals"]
        found: dict[str, Any] = chart["vconcat"][0]["spec"]["layer"][0]["encoding"]["y"]["scale"]
        return found

    assert scale(-2056.0)["type"] == "symlog"
    assert "type" not in scale(0.7)


def test_beyond_the_palette_colours_come_again_with_another_dash() -> None:
    history = [{"round": 1, "accuracy": 0.5}]
    chart = specifications(study(*[run(f"A{index}", history=history) for index in range(8)]))["metrics"]
    line = chart["vconcat"][0]["spec"]["layer"][0]["encoding"]
    assert line["color"]["scale"]["range"][0] == line["color"]["scale"]["range"][7]
    assert line["strokeDash"]["scale"]["range"][0] != line["strokeDash"]["scale"]["range"][7]


def test_the_sheet_carries_the_data_of_all_its_charts(compared: StudyOutcome) -> None:
    whole = stacked(specifications(compared))
    assert len(whole["vconcat"]) == 2
    assert named_data(whole["vconcat"]) == set(whole["datasets"]) != set()


def test_the_page_s_chart_answers_the_pointer_and_the_paper_one_is_left_alone(compared: StudyOutcome) -> None:
    still = specifications(compared)["metrics"]
    before = marks(still)
    moving = interactive(still)
    assert marks(moving) == [*before, "point"]
    assert marks(still) == before
    dots = moving["vconcat"][0]["spec"]["layer"][-1]
    assert dots["mark"]["tooltip"] == {"content": "data"}
    assert dots["params"][0]["select"]["fields"] == ["algorithm", "round"]


def test_facets_stand_in_the_order_in_which_the_algorithms_were_given() -> None:
    runs = [run(label, history=records(0.1, 0.2, name="dual")) for label in ("Second", "First")]
    facet = specifications(study(*runs))["duals"]["vconcat"][0]["facet"]
    assert facet["sort"] == ["Second", "First"]
