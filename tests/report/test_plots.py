from __future__ import annotations

import math

import pytest

from ffalm.report.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    Mark,
    Plot,
    axis,
    log_axis,
    rounds_axis,
    step_line,
    symlog_axis,
)
from ffalm.report.rendering import environment


@pytest.mark.parametrize(
    ("values", "start", "ticks"),
    [
        ([0.0, 20.0], 0.0, ["0", "5", "10", "15", "20"]),
        ([82.1, 84.3], None, ["82.0", "82.5", "83.0", "83.5", "84.0"]),
        ([0.0, 0.02], 0.0, ["0.000", "0.005", "0.010", "0.015", "0.020"]),
        ([], None, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_an_axis_has_round_numbers(values: list[float], start: float | None, ticks: list[str]) -> None:
    low, high, found = axis(values, start)
    assert [text for _, text in found] == ticks
    assert all(low <= place <= high for place, _ in found)


def test_an_axis_of_one_value_has_a_width() -> None:
    low, high, _ = axis([5.0])
    assert low < 5.0 < high


def test_marks_lie_within_the_drawing_and_reference_lines_reach_its_edges() -> None:
    line = Line([(5.0, -math.inf), (5.0, math.inf)], "target")
    plot = Plot("about", "x", "y", [Mark(2.0, 80.0, "seed", 0), Mark(10.0, 90.0, "seed", 0)], [line])
    assert [plot.at(x, y)[1] for x, y in line.points] == [HEIGHT - BOTTOM, TOP]
    for mark in plot.marks:
        x, y = plot.at(mark.x, mark.y)
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM
    assert plot.at(0.0, 85.0)[0] == LEFT
    assert plot.path(line).count(",") == 2


def test_a_front_is_level_until_the_next_point() -> None:
    assert step_line([(1.0, 80.0), (3.0, 82.0)]) == [(1.0, 80.0), (3.0, 80.0), (3.0, 82.0)]


def test_rounds_are_whole_numbers_from_the_first_to_the_last() -> None:
    assert rounds_axis([1, 70]) == (1, 70, [(20.0, "20"), (40.0, "40"), (60.0, "60")])
    assert [text for _, text in rounds_axis([1, 3])[2]] == ["1", "2", "3"]
    assert rounds_axis([4])[:2] == (3.5, 4.5)


def test_an_axis_of_values_that_blew_up_is_logarithmic_and_has_zero() -> None:
    assert symlog_axis([-2056.0, 3.0]) == (-2056.0, 3.0, [(-1000.0, "-1000"), (-10.0, "-10"), (0.0, "0")])


def test_a_logarithmic_axis_has_powers_of_ten_at_equal_distances() -> None:
    low, high, ticks = log_axis([0.03, 3000.0])
    assert low < 0.03 and high > 3000.0
    assert [text for _, text in ticks] == ["10⁻¹", "10⁰", "10¹", "10²", "10³"]
    plot = Plot("about", "x", "y", [Mark(1.0, 0.03, "seed", 0), Mark(10.0, 3000.0, "seed", 0)], y_scale="log")
    steps = [plot.at(1.0, 10.0**power)[1] - plot.at(1.0, 10.0 ** (power + 1))[1] for power in range(3)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)


@pytest.mark.parametrize(
    ("values", "start", "ticks"),
    [
        ([75.75, 75.75], None, ["75.6", "75.7", "75.8", "75.9"]),
        ([0.0, 0.0], None, ["-0.06", "-0.04", "-0.02", "0.00", "0.02", "0.04", "0.06"]),
        ([0.0], 0.0, ["0.00", "0.01", "0.02", "0.03", "0.04", "0.05", "0.06"]),
        ([0.0, 4e-5], 0.0, ["0", "1e-05", "2e-05", "3e-05", "4e-05"]),
    ],
)
def test_numbers_on_an_axis_are_short_however_alike_the_values(
    values: list[float], start: float | None, ticks: list[str]
) -> None:
    assert [text for _, text in axis(values, start)[2]] == ticks


def test_dots_of_more_algorithms_than_colours_have_other_shapes() -> None:
    marks = [Mark(float(place), 80.0, "mean", place) for place in (0, 7, 14)]
    template = environment().get_template("plot.html").make_module({})
    drawing = str(template.show(Plot("about", "x", "y", marks)))  # type: ignore[attr-defined]
    for shape in ("<circle", "<rect", "<path"):
        assert drawing.count(f'<g class="mean c0"><title></title>\n{shape}') == 1
