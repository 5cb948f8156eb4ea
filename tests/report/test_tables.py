"""The one table and its renderers, on numbers small enough to read."""

from __future__ import annotations

import csv
import io
import math
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from ffalm.report.rendering import isolated, print_whole, to_csv, to_html, to_latex, to_markdown, to_rich
from ffalm.report.summary import ALPHA
from ffalm.report.tables import Cell, Column, Section, Table, best, row

TABLE = Table(
    "Accuracy & more, 100 %",
    [Column("Name"), Column("paper", "percent", over="Acc. ↑"), Column("ours", "percent", over="Acc. ↑")],
    [Section([row("a_b", 0.8622, Cell(0.8335, 0.0228, bold=True))], f"UTKFace, {ALPHA} = 0.3")],
    notes=["A note with 5 %."],
)


def test_markdown_is_a_pipe_table_with_joined_heads() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert "| Name | Acc. ↑ paper | Acc. ↑ ours |" in lines
    assert "| --- | ---: | ---: |" in lines
    assert r"| a\_b | 86.22 | **83.35** ± 2.28 |" in lines
    assert f"UTKFace, {ALPHA} = 0.3" in lines


def test_latex_is_a_booktabs_table_with_spans_and_notes() -> None:
    text = to_latex(TABLE, "tab:x", compact=True)
    for part in (
        r"\toprule",
        r"\cmidrule(lr){2-3}",
        r"\multicolumn{2}{c}{Acc. $\uparrow$}",
        r"\multicolumn{3}{c}{UTKFace, $\alpha$ = 0.3} \\",
        r"a\_b & 86.22 & \textbf{83.35} {\tiny $\pm$ 2.28} \\",
        r"\label{tab:x}",
        r"A note with 5 \%.",
        r"\bottomrule",
    ):
        assert part in text
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert r"\textbf{83.35} $\pm$ 2.28 \\" in to_latex(TABLE)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("compact", [True, False])
def test_latex_compiles_with_booktabs_alone(compact: bool, tmp_path: Path) -> None:
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + "\n"
    text = document + to_latex(TABLE, "tab:x", compact) + r"\end{document}" + "\n"
    (tmp_path / "x.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_the_terminal_shows_every_cell_and_note() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_rich(TABLE))
    shown = console.export_text()
    for part in ("Acc. ↑ ours", f"UTKFace, {ALPHA} = 0.3", "83.35 ± 2.28", "A note with 5 %."):
        assert part in shown


def test_the_terminal_wraps_headings_and_names_and_cuts_neither() -> None:
    heads = [
        Column(when, "percent", 1, over=what)
        for what in ("selected", "found", "accuracy")
        for when in ("before", "after")
    ]
    cells = row("female, Asian-Pac-Islander", 12345, *[0.5] * 6)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_rich(Table("", [Column("Group"), Column("rows", "count"), *heads], [Section([cells])])))
    shown = console.export_text()
    assert "…" not in shown
    assert shown.count("selected") == shown.count("accuracy") == 2
    assert "12,345" in shown


def test_a_table_wider_than_the_terminal_keeps_every_digit_and_no_blanks_at_the_end() -> None:
    heads = [Column("accuracy", "percent", 1, over="calibration")] * 6
    table = Table("", [Column("Thresholds"), *heads, Column("DPD", "percent", 1)], [Section([row("a", *[0.1234] * 7)])])
    for width in (40, 80):
        console = Console(width=width, file=(file := io.StringIO()))
        print_whole(console, table)
        lines = file.getvalue().splitlines()
        assert [line.count("12.3") for line in lines if "12.3" in line] == [7]
        assert all(line == line.rstrip() for line in lines)


def test_a_terminal_breaks_no_number() -> None:
    columns = [Column("Group"), *[Column("a", "percent", 1)] * 9]
    table = Table("", columns, [Section([row("g", *[math.nan] * 9)])])
    console = Console(width=40, file=(file := io.StringIO()))
    print_whole(console, table)
    assert file.getvalue().count("undefined") == 9


def test_csv_and_records_hold_the_plain_values() -> None:
    table = Table("", [Column("site"), Column("dpd", "percent")], [Section([row("a, b", 1 / 3), row("c", math.nan)])])
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [["site", "dpd"], ["a, b", repr(1 / 3)], ["c", ""]]
    assert table.records() == [{"site": "a, b", "dpd": 1 / 3}, {"site": "c", "dpd": None}]


def test_html_escapes_every_text() -> None:
    attack = "<script>alert(1)</script>"
    table = Table(attack, [Column(attack), Column("x", "count")], [Section([row(attack, 3, note=attack)], attack)])
    assert "<script>" not in to_html(table)
    assert "&lt;script&gt;" in to_html(table)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column("", "percent"), 0.12345, "12.35"),
        (Column("", "percent", decimals=1), 0.12345, "12.3"),
        (Column("", "percent"), -0.00001, "0.00"),
        (Column("", "percent"), math.nan, "undefined"),
        (Column("", "percent"), "diverged", "diverged"),
        (Column("", "percent"), None, ""),
        (Column("", "points"), 0.01, "+1.00"),
        (Column("", "points"), -0.02871, "\N{MINUS SIGN}2.87"),
        (Column("", "points"), 0.00001, "0.00"),
        (Column("", "count"), 12345, "12,345"),
        (Column("", "number"), 17.6321, "17.6"),
        (Column("", "number", decimals=1), 1234.5, "1234"),
        (Column("", "number"), -0.00123456, "-0.00123"),
        (Column("", "share"), 0.256, "26 %"),
        (Column(""), "text", "text"),
    ],
)
def test_a_column_says_how_a_value_is_written(column: Column, value: float | str | None, text: str) -> None:
    assert column.text(Cell(value)) == text


def test_the_interval_of_a_difference_has_signs() -> None:
    assert Column("", "points").aside(Cell(0.0, interval=(-0.01, 0.02))) == "[\N{MINUS SIGN}1.00, +2.00]"


def test_a_name_that_several_rows_share_is_shown_once() -> None:
    rows = [row("FedAvg", "women", 1), row("FedAvg", "men", 2), row("FPFL", "women", 3)]
    table = Table("", [Column("Algorithm"), Column("Group"), Column("rows", "count")], [Section(rows)], names=2)
    assert to_markdown(table).splitlines()[2:] == ["| FedAvg | women | 1 |", "|  | men | 2 |", "| FPFL | women | 3 |"]
    assert to_html(table).count("FedAvg") == 1
    assert to_csv(table).count("FedAvg") == 2


def test_the_best_is_the_best_as_printed_and_never_an_excluded_row() -> None:
    assert best([0.80001, 0.80004, 0.79], higher=True) == [True, True, False]
    assert best([0.1, math.nan, 0.2], higher=False) == [True, False, False]
    assert best([0.1, 0.2, 0.3], higher=False, excluded=[True, False, False]) == [False, True, False]
    assert best([0.1, 0.2], higher=False, excluded=[True, True]) == [False, False]
    assert best([0.1], higher=False) == [False]


def test_the_spread_of_a_single_value_is_not_shown() -> None:
    table = Table("", [Column("Name"), Column("x", "percent")], [Section([row("a", Cell(0.7595, math.nan))])])
    assert to_markdown(table).splitlines()[-1] == "| a | 75.95 |"


def test_dollar_signs_are_no_formula_in_markdown() -> None:
    assert r"| \$0-\$9 |" in to_markdown(Table("", [Column("Group")], [Section([row("$0-$9")])]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("מקבל: 66.7 % are found; לא שלי", "\u2068מקבל\u2069: 66.7 % are found; \u2068לא שלי\u2069"),
        ("קבוצה 3", "קבוצה 3"),
        ("Zürich: 66.7 %", "Zürich: 66.7 %"),
    ],
)
def test_words_from_right_to_left_do_not_move_the_numbers_beside_them(text: str, shown: str) -> None:
    assert isolated(text) == shown
