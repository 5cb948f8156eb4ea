"""Paper, ours and the difference: arithmetic by hand, bold where it belongs, nothing beside a smoke run."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from tests.reproduce.conftest import outcome, study

from ffalm.report.rendering import to_csv
from ffalm.report.tables import Table
from ffalm.reproduce.metric_forms import formed, measured
from ffalm.reproduce.paper_comparison import compare, record, tall, tidy, warnings, wide

RUNS = (
    outcome(seed=0, accuracy=0.80, dpd=0.10, eod=0.30),
    outcome(seed=1, accuracy=0.90, dpd=0.12, eod=0.20),
    outcome("FFALM (paper)", "ffalm", 0, accuracy=0.70, dpd=0.05, eod=0.10),
    outcome("FFALM (paper)", "ffalm", 1, accuracy=0.70, dpd=0.07, eod=0.10),
)


def texts(table: Table) -> list[list[str]]:
    """The values of a table as they are written, without spreads."""
    return [[column.text(cell) for column, cell in zip(table.columns, one.cells, strict=True)] for one in table.rows]


def test_the_difference_is_ours_less_the_papers_in_points() -> None:
    fedavg, ffalm = compare({"utkface": study(*RUNS)})
    assert fedavg.difference("accuracy") == pytest.approx(85.00 - 86.22)
    assert fedavg.difference("dpd") == pytest.approx(11.00 - 13.07)
    assert ffalm.difference("eod") == pytest.approx(10.00 - 13.87)


def test_the_difference_agrees_with_the_printed_numbers() -> None:
    (line,) = compare({"utkface": study(outcome(accuracy=0.833349))})
    assert line.difference("accuracy") == pytest.approx(83.33 - 86.22)
    assert texts(wide([line], "title"))[0][3] == "\N{MINUS SIGN}2.89"


def test_the_wide_table_has_three_columns_a_metric() -> None:
    table = wide(compare({"utkface": study(*RUNS)}), "title")
    assert [column.head for column in table.columns] == ["Algorithm", *["paper", "ours", "diff."] * 3]
    first, second = (one.cells for one in table.rows)
    assert texts(table)[0][:4] == ["FedAvg", "86.22", "85.00", "\N{MINUS SIGN}1.22"]
    assert table.columns[2].aside(first[2]) == "± 7.07"
    assert (first[2].bold, second[5].bold) == (True, True)
    assert (first[1].bold, second[4].bold) == (False, True)
    assert table.sections[0].heading.startswith("UTKFace")


def test_seeds_have_a_column_only_where_they_differ() -> None:
    assert wide(compare({"utkface": study(*RUNS)}), "title").caption == "Seeds: 2."
    assert wide(compare({"utkface": study(*RUNS[:3])}), "title").columns[-1].head == "Seeds"


def test_the_tall_table_puts_the_three_under_one_another() -> None:
    rows = texts(tall(compare({"utkface": study(*RUNS)}), "title"))
    assert [row[1] for row in rows[:3]] == ["paper", "ours (2)", "difference"]
    assert [row[2] for row in rows[:3]] == ["86.22", "85.00", "\N{MINUS SIGN}1.22"]


def test_without_the_paper_ours_stands_alone() -> None:
    lines = compare({"faces": study(*RUNS)}, with_paper=False)
    assert [column.head for column in wide(lines, "title").columns] == ["Algorithm", "ours", "ours", "ours"]
    assert [row[1] for row in texts(tall(lines, "title"))] == ["ours (2)", "ours (2)"]
    assert math.isnan(lines[0].difference("dpd"))


def test_the_csv_has_the_same_numbers_unrounded() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(tidy(compare({"utkface": study(*RUNS)}))))))
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


def test_a_degenerate_row_is_flagged_in_every_form_and_never_bold() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    lost = [replace(run, confusion=everybody) for run in RUNS[2:]]
    lines = compare({"utkface": study(*RUNS[:2], *lost)})
    assert "one label is predicted" in record(lines[1])["degenerate"]
    assert [one.note.startswith("degenerate") for one in wide(lines, "title").rows] == [False, True]
    assert [cell.bold for cell in wide(lines, "title").rows[1].cells[2::3]] == [False] * 3
    assert [cell.bold for cell in wide(lines, "title").rows[0].cells[2::3]] == [True] * 3
    assert any("one label" in one.note for one in tall(lines, "title").rows)
