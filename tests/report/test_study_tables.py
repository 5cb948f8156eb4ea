from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.makers import run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.rendering import latex, to_csv, to_latex, to_markdown, to_rich
from ffalm.report.study_tables import against_baseline, per_client, results, tidy
from ffalm.report.summary import ALPHA


def markdown_rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_markdown_holds_the_numbers_worked_by_hand_and_bolds_the_best(compared: StudyOutcome) -> None:
    # FedAvg: accuracy 0.80 and 0.84, so 82 with a standard deviation of 2 * sqrt(2) = 2.83 points
    heads, _, fedavg, ffalm = markdown_rows(to_markdown(results(compared)))
    assert heads == ["Algorithm", "Acc. ↑", "DPD ↓", "EOD ↓", "Seeds", "Note"]
    assert fedavg[:5] == ["FedAvg", "**82.00** ± 2.83", "22.00 ± 2.83", "12.00 ± 2.83", "2"]
    assert ffalm == ["FFALM", "79.00", "**12.00**", "**11.00**", "1 of 2", "1 of 2 diverged"]


def test_an_algorithm_whose_runs_all_diverged_says_so_in_every_cell() -> None:
    row = markdown_rows(to_markdown(results(study(run("FFALM", 0, diverged="x"), run("FFALM", 1, diverged="x")))))[2]
    assert row == ["FFALM", "diverged", "diverged", "diverged", "0 of 2", "2 of 2 diverged"]


def test_a_metric_without_a_value_is_undefined_and_not_zero() -> None:
    row = markdown_rows(to_markdown(results(study(run("FedAvg", 0, 0.8, 0.1, math.nan)))))[2]
    assert row == ["FedAvg", "80.00", "10.00", "undefined", "1"]


def test_a_metric_that_is_undefined_in_some_seeds_is_noted() -> None:
    runs = [run("FedAvg", 0, 0.8, 0.1, 0.2), run("FedAvg", 1, 0.8, 0.1, math.nan)]
    assert markdown_rows(to_markdown(results(study(*runs))))[2][-1] == "EOD undefined in 1 of 2"


def test_one_seed_shows_its_interval_in_brackets() -> None:
    table = results(study(run("FedAvg", 0, 0.8, intervals={"accuracy": (0.771, 0.832)})))
    assert markdown_rows(to_markdown(table))[2][1] == "80.00 [77.10, 83.20]"
    assert "in brackets" in table.caption
    assert "standard deviation" not in table.caption


def test_several_skews_have_a_column_and_one_skew_is_in_the_title() -> None:
    several = results(study(run("A", 0, 0.8), run("A", 0, 0.7, alpha=5.0), run("A", 0, 0.6, alpha=None)))
    assert [row[0] for row in markdown_rows(to_markdown(several))] == [
        ALPHA,
        "---:",
        "0.3",
        "5",
        "none",
    ]
    assert f"{ALPHA} = 0.3" in results(study(run("A", 0, 0.8))).title
    assert ALPHA not in results(study(run("A", 0, 0.8, alpha=None))).title


def test_markdown_shows_a_label_with_pipes_and_stars_as_it_is() -> None:
    text = to_markdown(results(study(run("a|b*c", 0, 0.8))))
    assert r"| a\|b\*c | 80.00 |" in text


def test_latex_escapes_everything_that_is_markup() -> None:
    assert latex("50% & $x_1^2 #{~}\\") == (
        r"50\% \& \$x\_1\textasciicircum{}2 \#\{\textasciitilde{}\}\textbackslash{}"
    )


def test_latex_is_a_balanced_booktabs_table_with_caption_label_and_notes(compared: StudyOutcome) -> None:
    text = to_latex(results(compared), label="tab:incomes")
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\label{tab:incomes}" in text
    assert r"\caption{Incomes, $\alpha$ = 0.3" in text
    assert r"FedAvg & \textbf{82.00} $\pm$ 2.83 & 22.00 $\pm$ 2.83 & 12.00 $\pm$ 2.83 & 2 \\" in text
    assert r"FFALM\textsuperscript{a} & 79.00 & \textbf{12.00}" in text
    assert r"\textsuperscript{a}\,1 of 2 diverged." in text


def test_every_row_of_the_latex_table_has_as_many_cells_as_columns() -> None:
    text = to_latex(results(study(run("A & B", 0, 0.8), run("A & B", 0, 0.8, alpha=5.0))))
    columns = len(re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)[0])
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_with_booktabs_alone(tmp_path: Path) -> None:
    nasty = study(
        run('50% & $x_1^2 #{~}\\ <a|b> "q" ± \N{GREEK SMALL LETTER ALPHA} β', 0, 0.8),
        run("B", 0, diverged="x"),
        run("B", 0, 0.7, alpha=5.0),
        title="A_B & C%",
    )
    document = (
        r"\documentclass{article}\usepackage{booktabs}\begin{document}" + to_latex(results(nasty)) + r"\end{document}"
    )
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_csv_is_tidy_and_keeps_every_digit() -> None:
    text = to_csv(tidy(study(run("A", 0, 1 / 3, 0.1, math.nan, others={"loss_gap": 0.25}), run("A", 1, diverged="x"))))
    rows = {row["metric"]: row for row in csv.DictReader(io.StringIO(text))}
    assert list(rows) == ["accuracy", "dpd", "eod", "loss_gap"]
    assert float(rows["accuracy"]["mean"]) == 1 / 3
    assert rows["accuracy"] | {"mean": ""} == {
        "alpha": "0.3", "algorithm": "A", "metric": "accuracy", "mean": "", "std": "", "n": "1",
        "n_diverged": "1", "n_undefined": "0", "low": "", "high": "",
    }  # fmt: skip
    assert (rows["eod"]["mean"], rows["eod"]["n"], rows["eod"]["n_undefined"]) == ("", "0", "1")


def test_the_terminal_table_fits_eighty_columns_and_bolds_the_best(compared: StudyOutcome) -> None:
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(to_rich(results(compared)))
    plain = console.export_text(clear=False)
    assert "82.00 ± 2.83" in plain
    assert "FFALM: 1 of 2 diverged." in plain
    assert "\x1b[1m82.00\x1b[0m ± 2.83" in console.export_text(styles=True)


def test_the_terminal_does_not_read_markup_in_a_label() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_rich(results(study(run("[red]A[/red]", 0, 0.8)))))
    assert "[red]A[/red]" in console.export_text()


def test_a_degenerate_model_is_called_neither_better_nor_worse_than_the_baseline() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    runs = [run("FedAvg", seed, 0.9, 0.2, 0.2) for seed in (0, 1)]
    runs += [run("FFALM", seed, 0.8, 0.0, 0.0, confusion=everybody) for seed in (0, 1)]
    table = against_baseline(study(*runs))
    assert table is not None
    (row,) = table.rows
    assert {cell.verdict for cell in row.cells[1:]} == {"degenerate"}
    assert row.note.startswith("degenerate: in 2 of 2 runs")
    names = {"FedAvg": "ffalm", "FFALM": "fedavg"}
    swapped = against_baseline(study(*(replace(one, algorithm=names[one.label]) for one in runs)))
    assert swapped is not None
    assert {cell.verdict for cell in swapped.rows[0].cells[1:]} == {"baseline degenerate"}


def test_one_model_is_shown_at_each_client_the_least_accurate_first() -> None:
    own = [{"client": "north", "accuracy": 0.9, "dpd": 0.1}, {"client": "south", "accuracy": 0.7, "dpd": math.nan}]
    table = per_client(study(run("A"), per_client=own, per_client_of="A, seed 0"))
    assert table is not None
    assert [[cell.value for cell in one.cells[:2]] for one in table.rows] == [["south", 0.7], ["north", 0.9]]
    assert table.caption == "A, seed 0, as trained, on each client's own rows, in percent, the least accurate first."
    many = per_client(study(run("A"), per_client=own * 60))
    assert many is not None
    assert (len(many.rows), "first, 100 of 120 clients." in many.caption) == (100, True)
    assert per_client(study(run("A"))) is None
