"""The paper's tables beside ours: its figure, our mean and spread over seeds, and the difference between the two."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ffalm.outcome import Outcome, StudyOutcome
from ffalm.report.summary import DECIMALS, Row, pick, summarise
from ffalm.report.tables import HEADS, MINUS, mean_text, metric_name, seeds_text, skew, spread_text
from ffalm.reproduce.paper import METRICS, data_title, is_best, reported
from ffalm.reproduce.pieces import piecewise
from ffalm.reproduce.sheets import Cell, Section, Sheet
from ffalm.reproduce.strength import PULL_HEADS, PULL_TITLE, Strength, pull_row, strength, warning

CSV_COLUMNS = (
    *("data", "alpha", "algorithm", "metric", "paper", "ours", "std", "difference", "n", "n_diverged", "n_undefined"),
    *("largest_dual", "largest_negative_share"),
)


@dataclass(frozen=True)
class Line:
    """One algorithm on one data set at one skew."""

    data: str
    algorithm: str
    row: Row
    strength: Strength
    paper: dict[str, float] | None  # percent; None where the paper has no such experiment

    def difference(self, metric: str) -> float:
        """Ours less the paper's in percentage points, between the numbers as they are printed; NaN where one lacks."""
        if self.paper is None:
            return math.nan
        return round(100 * self.row.cells[metric].mean, DECIMALS) - self.paper[metric]


def measured(study: StudyOutcome, metric: str) -> StudyOutcome:
    """The study under one form of DPD and EOD: "conditional" as they are, or one of the released code's."""
    return (
        study if metric == "conditional" else replace(study, outcomes=[formed(run, metric) for run in study.outcomes])
    )


def formed(outcome: Outcome, form: str) -> Outcome:
    """A run whose DPD and EOD are of a form of the released code; the intervals belong to the others.

    "piecewise" leaves the validation records as they are, for they keep no counts from which it could be had.
    """
    gaps = ("dpd", "eod")

    def joint(values: dict[str, float]) -> dict[str, float]:
        return {**values, **{name: values.get(f"joint_{name}", math.nan) for name in gaps}}

    intervals = {name: ends for name, ends in outcome.intervals.items() if name not in gaps}
    if form == "piecewise":
        counts = outcome.confusion if outcome.diverged is None else None
        return replace(outcome, test=outcome.test | piecewise(counts), intervals=intervals)
    history = [joint(record) for record in outcome.history]
    return replace(outcome, test=joint(outcome.test), intervals=intervals, history=history)


def compare(studies: dict[str, StudyOutcome], with_paper: bool = True) -> list[Line]:
    """Every row of the studies, by data set, with the paper's figure where it has one."""
    lines = []
    for data, study in studies.items():
        for row in summarise(study):
            runs = pick(study, row.alpha, row.label)
            algorithm = runs[0].algorithm
            paper = reported(data, row.alpha, algorithm) if with_paper else None
            lines.append(Line(data, algorithm, row, strength(runs), paper))
    return lines


def wide(lines: Sequence[Line], title: str) -> Sheet:
    """Paper, ours and the difference side by side, for paper and screens; ours alone where there is nothing beside."""
    beside = any(line.paper for line in lines)
    kinds = ["paper", "ours", "diff."] if beside else ["ours"]
    seeds = {seeds_text(line.row) for line in lines}
    alike = len(seeds) == 1
    heads = ["Algorithm", *kinds * len(METRICS), *([] if alike else ["Seeds"])]
    spans = [("", 1), *((HEADS[metric], len(kinds)) for metric in METRICS), *([] if alike else [("", 1)])]
    told = f"{title}; seeds: {seeds.pop()}" if alike else title
    return Sheet(told, heads, _sections(lines, lambda line: [_wide_row(line, beside, not alike)]), spans=spans)


def tall(lines: Sequence[Line], title: str) -> Sheet:
    """Paper, ours and the difference under one another, for a terminal of 80 columns."""
    heads = ["Algorithm", "(seeds)", *(HEADS[metric] for metric in METRICS)]
    return Sheet(title, heads, _sections(lines, _tall_rows), names=2)


def pull(lines: Sequence[Line]) -> Sheet:
    """The largest dual and the largest share of steps with a negative weight, for every row of the table."""
    return Sheet(PULL_TITLE, PULL_HEADS, _sections(lines, lambda line: [pull_row(line.row.label, line.strength)]))


def warnings(lines: Sequence[Line]) -> list[str]:
    """What a reader must know before believing a row."""
    found = []
    for line in lines:
        said = warning(_where(line), line.strength) if line.algorithm == "ffalm" else None
        found += [*diverged([line]), *([said] if said else [])]
    return found


def diverged(lines: Sequence[Line]) -> list[str]:
    """Which runs have no numbers that could be averaged."""
    return [
        f"{_where(line)}: {line.row.diverged} of {line.row.runs} runs diverged and are in no mean."
        for line in lines
        if line.row.diverged
    ]


def beside(lines: Sequence[Line]) -> list[str]:
    """The paper's figures beside ours in sentences, for a page whose table has no room for them."""
    return [f"{line.row.label}{skew(line.row.alpha, ', ')}: {_told(line, line.paper)}." for line in lines if line.paper]


def _told(line: Line, paper: dict[str, float]) -> str:
    parts = []
    for metric in METRICS:
        ours = mean_text(line.row, line.row.cells[metric])
        gap = difference_text(line.difference(metric)) or "undefined"
        parts.append(f"{metric_name(metric)} {paper[metric]:.{DECIMALS}f} (ours {ours}, difference {gap})")
    return f"the paper reports {', '.join(parts)}"


def to_csv(lines: Sequence[Line]) -> str:
    """One line for every row and metric: the paper's figure, ours and the difference in percent, unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in lines:
        for metric in METRICS:
            cell = line.row.cells[metric]
            paper = None if line.paper is None else line.paper[metric]
            mean = 100 * cell.mean if cell.n else None
            gap = None if mean is None or paper is None else mean - paper
            std = None if cell.std is None else 100 * cell.std
            counts = (cell.n, line.row.diverged, cell.undefined)
            pulled = (line.strength.dual, line.strength.negative)
            writer.writerow(
                (line.data, line.row.alpha, line.row.label, metric, paper, mean, std, gap, *counts, *pulled)
            )
    return text.getvalue()


def difference_text(value: float) -> str:
    """Percentage points with their sign."""
    if not math.isfinite(value):
        return ""
    text = f"{round(value, DECIMALS) + 0.0:+.{DECIMALS}f}"
    return text.replace("-", MINUS) if float(text) else text[1:]


def _where(line: Line) -> str:
    return f"{data_title(line.data)}{skew(line.row.alpha, ', ')}, {line.row.label}"


def _sections(lines: Sequence[Line], rows: Callable[[Line], list[list[Cell]]]) -> list[Section]:
    sections: dict[str, list[list[Cell]]] = {}
    for line in lines:
        heading = f"{data_title(line.data)}{skew(line.row.alpha, ', ')}"
        sections.setdefault(heading, []).extend(rows(line))
    return [Section(heading, found) for heading, found in sections.items()]


def _paper_cell(line: Line, metric: str) -> Cell:
    if line.paper is None or line.row.alpha is None:
        return Cell()
    best = is_best(line.data, line.row.alpha, line.algorithm, metric)
    return Cell(f"{line.paper[metric]:.{DECIMALS}f}", bold=best)


def _our_cell(line: Line, metric: str) -> Cell:
    cell = line.row.cells[metric]
    return Cell(mean_text(line.row, cell), spread_text(cell), cell.best)


def _wide_row(line: Line, beside: bool, seeds: bool) -> list[Cell]:
    cells = [Cell(line.row.label)]
    for metric in METRICS:
        ours = _our_cell(line, metric)
        gap = Cell(difference_text(line.difference(metric)))
        cells += [_paper_cell(line, metric), ours, gap] if beside else [ours]
    return [*cells, *([Cell(seeds_text(line.row))] if seeds else [])]


def _tall_rows(line: Line) -> list[list[Cell]]:
    ours = [Cell(f"ours ({seeds_text(line.row)})"), *(_our_cell(line, metric) for metric in METRICS)]
    if line.paper is None:
        return [[Cell(line.row.label), *ours]]
    paper = [Cell("paper"), *(_paper_cell(line, metric) for metric in METRICS)]
    gaps = [Cell("difference"), *(Cell(difference_text(line.difference(metric))) for metric in METRICS)]
    return [[Cell(line.row.label), *paper], [Cell(), *ours], [Cell(), *gaps]]
