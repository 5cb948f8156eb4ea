"""The paper's tables next to ours: its number, our mean and spread over seeds, and the difference between the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ffalm.outcome import StudyOutcome
from ffalm.report.summary import HEADS, AlgorithmSummary, metric_name, pick, skew, summarise
from ffalm.report.tables import DECIMALS, Cell, Column, Row, Section, Table, percent, plain, row, signed
from ffalm.reproduce import constraint_diagnostics
from ffalm.reproduce.constraint_diagnostics import Diagnostics, diagnose
from ffalm.reproduce.paper import METRICS, data_title, is_best, reported

CSV_COLUMNS = (
    *("data", "alpha", "algorithm", "metric", "paper", "ours", "std", "difference", "n", "n_diverged", "n_undefined"),
    *("largest_dual", "largest_negative_share"),
)


@dataclass(frozen=True)
class Line:
    """One algorithm on one data set at one skew."""

    data: str
    algorithm: str
    summary: AlgorithmSummary
    diagnostics: Diagnostics
    paper: dict[str, float] | None  # percent; None where the paper has no such experiment

    @property
    def where(self) -> str:
        """The data set and the skew."""
        return f"{data_title(self.data)}{skew(self.summary.alpha, ', ')}"

    def difference(self, metric: str) -> float:
        """Ours minus the paper's in percentage points, between the numbers as printed; NaN if one is missing."""
        if self.paper is None:
            return math.nan
        return round(100 * self.summary.cells[metric].mean, DECIMALS) - self.paper[metric]

    def cells(self, metric: str) -> dict[str, Cell]:
        """The paper's number, ours and the difference as cells of a table."""
        ours = self.summary.cell(metric)
        if self.paper is None or self.summary.alpha is None:
            return {"paper": Cell(), "ours": ours, "diff.": Cell()}
        best = is_best(self.data, self.summary.alpha, self.algorithm, metric)
        gap = plain(self.difference(metric) / 100)
        return {"paper": Cell(self.paper[metric] / 100, bold=best), "ours": ours, "diff.": Cell(gap)}

    @property
    def note(self) -> str:
        """Why the model is degenerate, if it is; diverged runs are mentioned elsewhere."""
        return f"degenerate: {self.summary.degenerate}" if self.summary.degenerate else ""


def compare(studies: dict[str, StudyOutcome], with_paper: bool = True) -> list[Line]:
    """Every row of the studies, by data set, with the paper's numbers where it has them."""
    lines = []
    for data, study in studies.items():
        for summary in summarise(study):
            runs = pick(study, summary.alpha, summary.label)
            algorithm = runs[0].algorithm
            paper = reported(data, summary.alpha, algorithm) if with_paper else None
            lines.append(Line(data, algorithm, summary, diagnose(runs), paper))
    return lines


def wide(lines: Sequence[Line], title: str, caption: str = "") -> Table:
    """Paper, ours and the difference side by side; ours alone where there is nothing to compare it with."""
    kinds = ["paper", "ours", "diff."] if any(line.paper for line in lines) else ["ours"]
    seeds = list(dict.fromkeys(line.summary.seeds for line in lines))
    columns = [Column("Algorithm")]
    for metric in METRICS:
        columns += [Column(kind, "points" if kind == "diff." else "percent", over=HEADS[metric]) for kind in kinds]

    def made(line: Line) -> list[Row]:
        cells = [line.cells(metric)[kind] for metric in METRICS for kind in kinds]
        return [row(line.summary.label, *cells, *([line.summary.seeds] if len(seeds) > 1 else []), note=line.note)]

    if len(seeds) == 1:
        return Table(title, columns, _sections(lines, made), f"{caption} Seeds: {seeds[0]}.".strip())
    return Table(title, [*columns, Column("Seeds", "count")], _sections(lines, made), caption)


def tall(lines: Sequence[Line], title: str, caption: str = "") -> Table:
    """Paper, ours and the difference below one another, for a terminal of 80 columns."""
    columns = [Column("Algorithm"), Column("(seeds)"), *(Column(HEADS[metric], "percent") for metric in METRICS)]

    def made(line: Line) -> list[Row]:
        found = [line.cells(metric) for metric in METRICS]
        label, ours = line.summary.label, f"ours ({line.summary.seeds})"
        rows = [row(label, ours, *(cells["ours"] for cells in found), note=line.note)]
        if line.paper is None:
            return rows
        gaps = [signed(gap / 100) if math.isfinite(gap := line.difference(metric)) else None for metric in METRICS]
        return [row(label, "paper", *(cells["paper"] for cells in found)), *rows, row(label, "difference", *gaps)]

    return Table(title, columns, _sections(lines, made), caption, names=2)


def diagnostics(lines: Sequence[Line]) -> Table:
    """The constraint diagnostics of every row of the table."""
    sections: dict[str, list[tuple[str, Diagnostics]]] = {}
    for line in lines:
        sections.setdefault(line.where, []).append((line.summary.label, line.diagnostics))
    return constraint_diagnostics.table(sections)


def tidy(lines: Sequence[Line]) -> Table:
    """One row for every algorithm and metric, for machines: paper, ours and difference in percent, unrounded."""
    rows = []
    for line in lines:
        for metric in METRICS:
            cell = line.summary.cells[metric]
            paper = None if line.paper is None else line.paper[metric]
            mean = 100 * cell.mean if cell.n else None
            gap = None if mean is None or paper is None else mean - paper
            std = None if cell.std is None else 100 * cell.std
            counts = (cell.n, line.summary.diverged, cell.undefined)
            extremes = (line.diagnostics.dual, line.diagnostics.negative)
            named = (line.data, line.summary.alpha, line.summary.label, metric)
            rows.append(row(*named, paper, mean, std, gap, *counts, *extremes))
    return Table("", [Column(name) for name in CSV_COLUMNS], [Section(rows)])


def record(line: Line) -> dict[str, Any]:
    """A row as plain values, for JSON."""
    cells = line.summary.cells
    return {
        "data": line.data,
        "alpha": line.summary.alpha,
        "algorithm": line.algorithm,
        "label": line.summary.label,
        "seeds": line.summary.finished,
        "paper": line.paper,
        "ours": {name: 100 * cell.mean for name, cell in cells.items()},
        "std": {name: None if cell.std is None else 100 * cell.std for name, cell in cells.items()},
        "difference": {name: line.difference(name) for name in cells},
        "largest_dual": line.diagnostics.dual,
        "largest_negative_share": line.diagnostics.negative,
        "degenerate": line.summary.degenerate or None,
    }


def warnings(lines: Sequence[Line]) -> list[str]:
    """What a reader must know before believing a row."""
    found = []
    for line in lines:
        name = f"{line.where}, {line.summary.label}"
        said = constraint_diagnostics.warning(name, line.diagnostics) if line.algorithm == "ffalm" else None
        found += [*diverged([line]), *([said] if said else [])]
    return found


def diverged(lines: Sequence[Line]) -> list[str]:
    """Which runs have no numbers that could be averaged."""
    return [
        f"{line.where}, {line.summary.label}: {line.summary.diverged} of {line.summary.runs} runs diverged and are in "
        "no mean."
        for line in lines
        if line.summary.diverged
    ]


def beside(lines: Sequence[Line]) -> list[str]:
    """The paper's numbers next to ours in sentences, for a page whose table has no room for them."""
    found = []
    for line in lines:
        parts = []
        for metric, paper in (line.paper or {}).items():
            ours = Column("", "percent").text(line.summary.cell(metric))
            gap = line.difference(metric)
            change = signed(gap / 100) if math.isfinite(gap) else "undefined"
            parts.append(f"{metric_name(metric)} {percent(paper / 100)} (ours {ours}, difference {change})")
        if parts:
            name = f"{line.summary.label}{skew(line.summary.alpha, ', ')}"
            found.append(f"{name}: the paper reports {', '.join(parts)}.")
    return found


def _sections(lines: Sequence[Line], made: Callable[[Line], list[Row]]) -> list[Section]:
    sections: dict[str, list[Row]] = {}
    for line in lines:
        sections.setdefault(line.where, []).extend(made(line))
    return [Section(rows, heading) for heading, rows in sections.items()]
