"""The table of a study, as in the paper: algorithms down, accuracy and gaps across, in percent.

One structure, `Table`, and one renderer for each place it goes: Markdown, LaTeX, CSV, the terminal. None
ever prints a number for a metric that has none.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ffalm.outcome import HEADLINE, StudyOutcome
from ffalm.report.summary import DECIMALS, Cell, Row, metric_names, summarise

if TYPE_CHECKING:
    from rich.table import Table as RichTable

#: Column heads: the paper's abbreviation and the direction that is better.
HEADS = {
    metric: f"{'Acc.' if metric == 'accuracy' else name} {'↑' if up else '↓'}"
    for metric, (name, up) in HEADLINE.items()
}

#: Signs that look like letters, by name so that nobody takes one for the other.
ALPHA, MINUS, TIMES = "\N{GREEK SMALL LETTER ALPHA}", "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

CSV_COLUMNS = ("alpha", "algorithm", "metric", "mean", "std", "n", "n_diverged", "n_undefined", "low", "high")

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "±": r"$\pm$",
    "≤": r"$\leq$", "≥": r"$\geq$", ALPHA: r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "η": r"$\eta$",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "Δ": r"$\Delta$", MINUS: r"$-$", TIMES: r"$\times$", "\u202f": r"\,",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A study's results with nothing left to decide but the markup."""

    title: str
    rows: list[Row]
    compared: int = 2  # groups whose gaps the cells tell

    @property
    def several_alphas(self) -> bool:
        """Whether the rows must say at which skew they were taken."""
        return len({row.alpha for row in self.rows}) > 1

    @property
    def has_notes(self) -> bool:
        """Whether some row has something to confess."""
        return any(note(row) for row in self.rows)

    @property
    def caption(self) -> str:
        """The title and how to read the cells, saying only what applies."""
        cells = [cell for row in self.rows for cell in row.cells.values()]
        alphas = {row.alpha for row in self.rows}
        parts = [
            f"{self.title}{skew(alphas.pop(), ', ') if len(alphas) == 1 else ''}",
            "test metrics in percent",
        ]
        if any(cell.std is not None for cell in cells):
            parts.append("mean ± sample standard deviation over the seeds that finished")
        if any(cell.interval is not None for cell in cells):
            parts.append("95 % interval over the sampling of the test rows in brackets where there is one seed")
        if any(cell.best for cell in cells):
            parts.append("best mean in bold")
        if self.compared > 2:
            parts.append(f"DPD and EOD the largest difference between two of {self.compared} groups")
        return f"{parts[0]}: {', '.join(parts[1:])}."

    def groups(self) -> Iterator[tuple[float | None, list[Row]]]:
        """The rows of one skew at a time."""
        for alpha, rows in groupby(self.rows, key=lambda row: row.alpha):
            yield alpha, list(rows)


def build(study: StudyOutcome) -> Table:
    """The table of a study."""
    return Table(study.title, summarise(study), max(2, len(study.group_names)))


def skew(alpha: float | None, before: str = "") -> str:
    """How a reader names a skew; nothing after other text for a partition that has none."""
    if alpha is None:
        return "" if before else "no Dirichlet skew"
    return f"{before}{ALPHA} = {alpha:g}"


def percent(value: float, decimals: int = DECIMALS) -> str:
    """A fraction in percent, never as minus zero."""
    return f"{round(100 * value, decimals) + 0.0:.{decimals}f}"


def signed(value: float, decimals: int = DECIMALS) -> str:
    """A difference in percentage points with its sign."""
    text = percent(value, decimals)
    return text.replace("-", MINUS) if text.startswith("-") else f"+{text}" if float(text) else text


def mean_text(row: Row, cell: Cell) -> str:
    """The mean in percent, or in words why there is none."""
    if row.finished == 0:
        return "diverged"
    return percent(cell.mean) if math.isfinite(cell.mean) else "undefined"


def spread_text(cell: Cell) -> str:
    """What stands beside the mean: the spread over seeds, the interval of one run, or nothing."""
    if cell.std is not None:
        return f"± {percent(cell.std)}"
    if cell.interval is not None:
        return f"[{percent(cell.interval[0])}, {percent(cell.interval[1])}]"
    return ""


def cell_text(row: Row, cell: Cell) -> str:
    """Mean and spread."""
    return f"{mean_text(row, cell)} {spread_text(cell)}".rstrip()


def seeds_text(row: Row) -> str:
    """How many runs the means rest on."""
    return f"{row.finished} of {row.runs}" if row.diverged else str(row.runs)


def note(row: Row) -> str:
    """What the means leave out: runs that diverged, and runs in which a metric has no value."""
    parts = [f"{row.diverged} of {row.runs} diverged"] if row.diverged else []
    for metric, cell in row.cells.items():
        if cell.undefined and cell.n:
            parts.append(f"{metric_name(metric)} undefined in {cell.undefined} of {row.finished}")
    return "; ".join(parts)


def metric_name(metric: str) -> str:
    """What a reader calls a metric."""
    return HEADLINE[metric][0] if metric in HEADLINE else metric.replace("_", " ")


def to_markdown(table: Table) -> str:
    """A pipe table that GitHub and Pandoc read."""
    heads = [ALPHA] * table.several_alphas + ["Algorithm", *HEADS.values(), "Seeds"] + ["Note"] * table.has_notes
    aligns = ["---:"] * table.several_alphas + ["---", *["---:"] * (len(HEADS) + 1)] + ["---"] * table.has_notes
    lines = [_pipes(heads), _pipes(aligns)]
    for row in table.rows:
        cells = [_bold_markdown(cell_text(row, cell), cell.best) for cell in row.cells.values()]
        alpha = [_alpha_text(row.alpha)] * table.several_alphas
        notes = [note(row)] * table.has_notes
        lines.append(_pipes([*alpha, _plain_markdown(row.label), *cells, seeds_text(row), *notes]))
    return f"{_plain_markdown(table.caption)}\n\n" + "\n".join(lines) + "\n"


def to_latex(table: Table, label: str = "tab:ffalm") -> str:
    """A table like the paper's, with notes below it; it needs the package booktabs and nothing else."""
    marks = {text: chr(ord("a") + index % 26) for index, text in enumerate(_distinct_notes(table))}
    body: list[str] = []
    for alpha, rows in table.groups():
        body.append(r"\midrule")
        if table.several_alphas:
            body += [rf"\multicolumn{{{len(HEADS) + 2}}}{{c}}{{{latex(skew(alpha))}}} \\", r"\midrule"]
        body += [_latex_row(row, marks.get(note(row), "")) for row in rows]
    heads = " & ".join(latex(head) for head in ["Algorithm", *HEADS.values(), "Seeds"])
    notes = [rf"\textsuperscript{{{mark}}}\,{latex(text)}." for text, mark in marks.items()]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex(table.caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(HEADS) + 1)}}}",
        r"\toprule",
        rf"{heads} \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip", r"{\footnotesize " + r" \quad ".join(notes) + "}"] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(study: StudyOutcome) -> str:
    """One line for every skew, algorithm and test metric, in full precision; an empty field has no value.

    Means are fractions. Machines get every metric that was measured, not only those of the paper's table.
    """
    metrics = metric_names(study)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in summarise(study, metrics):
        for metric, cell in row.cells.items():
            mean = repr(cell.mean) if cell.n else None
            low, high = cell.interval or (None, None)
            counts = (cell.n, row.diverged, cell.undefined)
            writer.writerow((row.alpha, row.label, metric, mean, cell.std, *counts, low, high))
    return text.getvalue()


def to_rich(table: Table) -> RichTable:
    """The table for a terminal of 80 columns: the best means in bold, notes below."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    notes = [f"{row.label}{skew(row.alpha, ', ')}: {note(row)}." for row in table.rows if note(row)]
    caption = Text("\n".join([table.caption, *notes]), style="dim")
    rich = RichTable(box=SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    for head in [ALPHA] * table.several_alphas + ["Algorithm"]:
        rich.add_column(head)
    for head in [*HEADS.values(), "Seeds"]:
        rich.add_column(head, justify="right")
    for alpha, rows in table.groups():
        for index, row in enumerate(rows):
            named = "" if index else _alpha_text(alpha)
            cells = [Text(cell_text(row, cell), style="bold" if cell.best else "") for cell in row.cells.values()]
            first = [Text(named)] * table.several_alphas
            rich.add_row(*first, Text(row.label), *cells, seeds_text(row), end_section=index == len(rows) - 1)
    return rich


def latex(text: str) -> str:
    """Text with everything that LaTeX would take for markup escaped."""
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_row(row: Row, mark: str) -> str:
    cells = []
    for cell in row.cells.values():
        mean = latex(mean_text(row, cell))
        cells.append(" ".join(filter(None, [rf"\textbf{{{mean}}}" if cell.best else mean, latex(spread_text(cell))])))
    name = latex(row.label) + (rf"\textsuperscript{{{mark}}}" if mark else "")
    return " & ".join([name, *cells, seeds_text(row)]) + r" \\"


def _distinct_notes(table: Table) -> list[str]:
    return list(dict.fromkeys(text for row in table.rows if (text := note(row))))


def _alpha_text(alpha: float | None) -> str:
    return "none" if alpha is None else f"{alpha:g}"


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold_markdown(text: str, bold: bool) -> str:
    mean, _, spread = text.partition(" ")
    return f"**{mean}** {spread}".rstrip() if bold else text


def _plain_markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    escaped = "".join(f"\\{character}" if character in "\\`*_{}[]<>#|" else character for character in text)
    return " ".join(escaped.split())
