"""Paper, ours and the difference: arithmetic by hand, bold where it belongs, nothing beside a smoke run."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from tests.reproduce.conftest import outcome, study

from ffalm.reproduce.comparison import compare, difference_text, formed, measured, tall, to_csv, warnings, wide

RUNS = (
    outcome(seed=0, accuracy=0.80, dpd=0.10, eod=0.30),
    outcome(seed=1, accuracy=0.90, dpd=0.12, eod=0.20),
    outcome("FFALM (paper)", "ffalm", 0, accuracy=0.70, dpd=0.05, eod=0.10),
    outcome("FFALM (paper)", "ffalm", 1, accuracy=0.70, dpd=0.07, eod=0.10),
)


def test_the_difference_is_ours_less_the_papers_in_points() -> None:
    fedavg, ffalm = compare({"utkface": study(*RUNS)})
    assert fedavg.difference("accuracy") == pytest.approx(85.00 - 86.22)
    assert fedavg.difference("dpd") == pytest.approx(11.00 - 13.07)
    assert ffalm.difference("eod") == pytest.approx(10.00 - 13.87)


def test_the_difference_agrees_with_the_printed_numbers() -> None:
    (line,) = compare({"utkface": study(outcome(accuracy=0.833349))})
    assert line.difference("accuracy") == pytest.approx(83.33 - 86.22)
    assert difference_text(line.difference("accuracy")) == "\N{MINUS SIGN}2.89"


def test_the_wide_table_has_three_columns_a_metric() -> None:
    sheet = wide(compare({"utkface": study(*RUNS)}), "title")
    assert sheet.heads == ["Algorithm", *["paper", "ours", "diff."] * 3]
    first, second = sheet.sections[0].rows
    assert [cell.text for cell in first[:4]] == ["FedAvg", "86.22", "85.00", "\N{MINUS SIGN}1.22"]
    assert first[2].aside == "± 7.07"
    assert (first[2].bold, second[5].bold) == (True, True)
    assert (first[1].bold, second[4].bold) == (False, True)
    assert sheet.sections[0].heading.startswith("UTKFace")


def test_seeds_have_a_column_only_where_they_differ() -> None:
    assert wide(compare({"utkface": study(*RUNS)}), "title").title.endswith("seeds: 2")
    assert wide(compare({"utkface": study(*RUNS[:3])}), "title").heads[-1] == "Seeds"


def test_the_tall_table_puts_the_three_under_one_another() -> None:
    rows = tall(compare({"utkface": study(*RUNS)}), "title").sections[0].rows
    assert [row[1].text for row in rows[:3]] == ["paper", "ours (2)", "difference"]
    assert [row[2].text for row in rows[:3]] == ["86.22", "85.00", "\N{MINUS SIGN}1.22"]


def test_without_the_paper_ours_stands_alone() -> None:
    lines = compare({"faces": study(*RUNS)}, with_paper=False)
    assert wide(lines, "title").heads == ["Algorithm", "ours", "ours", "ours"]
    assert [row[1].text for row in tall(lines, "title").sections[0].rows] == ["ours (2)", "ours (2)"]
    assert math.isnan(lines[0].difference("dpd"))


def test_the_csv_has_the_same_numbers_unrounded() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(compare({"utkface": study(*RUNS)})))))
    assert len(rows) == 2 * 3
    first = rows[0]
    assert (first["data"], first["alpha"], first["metric"], first["n"]) == ("utkface", "0.3", "accuracy", "2")
    assert float(first["paper"]) == 86.22
    assert float(first["difference"]) == pytest.approx(-1.22)
    assert first["largest_dual"] == ""


def test_the_joint_form_takes_the_released_codes_metrics() -> None:
    runs = measured(study(*RUNS), "joint").outcomes
    assert (runs[0].test["dpd"], runs[0].test["eod"]) == (0.3, 0.4)
    assert runs[0].test["accuracy"] == 0.80
    assert "dpd" not in runs[0].intervals
    record = formed(outcome(history=[{"round": 1, "dpd": 0.1, "joint_dpd": 0.5}]), "joint").history[0]
    assert record["dpd"] == 0.5
    assert math.isnan(record["eod"])
    assert measured(study(*RUNS), "conditional").outcomes == list(RUNS)


def test_the_piecewise_form_comes_from_the_counts_and_leaves_the_curves_alone() -> None:
    counts = [[[450.0, 400.0], [0.0, 0.0]], [[0.0, 0.0], [50.0, 100.0]]]
    run = replace(outcome(history=[{"round": 1, "dpd": 0.1}]), confusion=counts)
    found = formed(run, "piecewise")
    assert 0.1 < found.test["dpd"] < 0.12
    assert found.test["eod"] == 0
    assert found.test["accuracy"] == run.test["accuracy"]
    assert found.history == run.history
    assert math.isnan(formed(outcome(), "piecewise").test["dpd"])  # a run that kept no counts
    lost = formed(replace(run, diverged="The run diverged."), "piecewise")
    assert math.isnan(lost.test["dpd"])  # nor are the counts of a run that diverged a result


def test_diverged_runs_are_counted_and_named() -> None:
    lost = outcome(seed=2, diverged="The run diverged.", accuracy=math.nan, dpd=math.nan, eod=math.nan)
    lines = compare({"utkface": study(*RUNS[:2], lost)})
    assert lines[0].difference("accuracy") == pytest.approx(85.00 - 86.22)
    assert any("1 of 3 runs diverged" in sentence for sentence in warnings(lines))


@pytest.mark.parametrize(
    ("value", "text"), [(1.005, "+1.00"), (-2.871, "\N{MINUS SIGN}2.87"), (0.001, "0.00"), (math.nan, "")]
)
def test_differences_are_printed_with_their_sign(value: float, text: str) -> None:
    assert difference_text(value) == text
