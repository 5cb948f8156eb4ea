from __future__ import annotations

import re
from xml.etree import ElementTree

from tests.report.makers import records, run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.chart_sheet import sheet
from ffalm.report.curves import charts


def test_the_sheet_has_all_charts_below_one_another_and_nothing_lies_outside(compared: StudyOutcome) -> None:
    text = sheet(charts(compared))
    root = ElementTree.fromstring(text)
    assert root.get("width") == str(3 * 320 + 2 * 24 + 2 * 12)  # three small panels, gaps and margins
    assert text.index("Validation metrics by round") < text.index("Duals by round")
    assert text.count('class="plot"') == 4
    lowest = max(float(found) for found in re.findall(r'class="name"|translate\([\d.]+ ([\d.]+)\)', text) if found)
    assert lowest + 220 <= float(root.get("height") or 0)


def test_a_long_legend_takes_several_lines() -> None:
    many = study(*[run(f"an algorithm with a long name {index}", history=records(0.5)) for index in range(9)])
    text = sheet(charts(many))
    places = re.findall(r'translate\(([\d.]+) ([\d.]+)\)">\n<polyline class="curve', text)
    assert len(places) == 9
    assert len({y for _, y in places}) > 1
    assert max(float(x) for x, _ in places) < float(ElementTree.fromstring(text).get("width") or 0) - 200


def test_names_are_escaped() -> None:
    assert "<script>" not in sheet(charts(study(run("<script>", history=records(0.5)))))
