"""Markdown, LaTeX and terminal of one table."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from ffalm.report.summary import ALPHA
from ffalm.reproduce.sheets import Cell, Section, Sheet, to_latex, to_markdown, to_rich

SHEET = Sheet(
    "Accuracy & more, 100 %",
    ["Name", "paper", "ours"],
    [Section(f"UTKFace, {ALPHA} = 0.3", [[Cell("a_b"), Cell("86.22"), Cell("83.35", "± 2.28", bold=True)]])],
    spans=[("", 1), ("Acc. ↑", 2)],
)


def test_markdown_is_a_pipe_table_with_joined_heads() -> None:
    lines = to_markdown(SHEET).splitlines()
    assert "| Name | Acc. ↑ paper | Acc. ↑ ours |" in lines
    assert "| --- | ---: | ---: |" in lines
    assert r"| a\_b | 86.22 | **83.35** ± 2.28 |" in lines
    assert f"UTKFace, {ALPHA} = 0.3" in lines


def test_latex_is_a_booktabs_table_with_spans_and_notes() -> None:
    text = to_latex(SHEET, "tab:x", ["A note with 5 %."])
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


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_compiles_with_booktabs_alone(tmp_path: Path) -> None:
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + "\n"
    (tmp_path / "x.tex").write_text(document + to_latex(SHEET, "tab:x", ["A note."]) + r"\end{document}" + "\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_the_terminal_shows_every_cell() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_rich(SHEET))
    shown = console.export_text()
    for part in ("Acc. ↑ ours", f"UTKFace, {ALPHA} = 0.3", "83.35 ± 2.28"):
        assert part in shown
