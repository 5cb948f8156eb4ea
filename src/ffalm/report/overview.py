"""The results table of the page: the paper's three metrics, and others that reveal what a small gap may hide.

Balanced accuracy and the selection rate come from the counts of the test rows. The last row of each skew is the
model that always predicts the most frequent label: a model that is no better is no result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ffalm.outcome import Counts, Outcome, StudyOutcome
from ffalm.report.study_tables import by_skew, how_to_read
from ffalm.report.summary import HEADS, summarise
from ffalm.report.tables import Column, Row, Table, row

#: Column headings; selecting more or fewer people is not better or worse.
_COLUMNS = {
    **HEADS,
    "equalized_odds": "Eq. odds ↓",
    "worst_group_accuracy": "Worst group ↑",
    "balanced_accuracy": "Balanced acc. ↑",
    "selection_rate": "Selected",
}
_NEUTRAL = ("selection_rate",)
MAJORITY = "Always the most frequent label"


def overview(study: StudyOutcome) -> Table:
    """One row per algorithm and skew, with the majority baseline below."""
    wider = replace(study, outcomes=[_with_rates(run, study.favourable) for run in study.outcomes])
    known = {name for run in wider.outcomes for name, value in run.test.items() if math.isfinite(value)}
    metrics = [name for name in _COLUMNS if name in HEADS or name in known]
    found = summarise(wider, metrics)
    rows = []
    for alpha in study.alphas():
        for one in found:
            if one.alpha == alpha:
                cells = [
                    replace(one.cell(name), bold=one.cells[name].best and name not in _NEUTRAL) for name in metrics
                ]
                rows.append((alpha, row(one.label, *cells, one.seeds, note=one.note)))
        runs = [run for run in study.outcomes if run.alpha == alpha and run.confusion is not None]
        rows += [(alpha, _baseline(runs, metrics, study))] if runs else []
    columns = [Column("Algorithm"), *(Column(_COLUMNS[name], "percent") for name in metrics), Column("Seeds", "count")]
    return Table("", columns, by_skew(study, rows), how_to_read(found, len(study.compared)), style="results")


def _with_rates(run: Outcome, favourable: int) -> Outcome:
    """A run with further metrics computed from its counts."""
    if run.confusion is None or run.diverged is not None:
        return run
    totals = [[sum(cells) for cells in labels] for labels in run.confusion]  # by prediction and label
    actual = [sum(column) for column in zip(*totals, strict=True)]
    recalls = [totals[label][label] / rows for label, rows in enumerate(actual) if rows > 0]
    rates = {
        "balanced_accuracy": fmean(recalls) if recalls else math.nan,
        "selection_rate": sum(totals[favourable]) / sum(actual) if sum(actual) > 0 else math.nan,
    }
    return replace(run, test=run.test | rates)


def _baseline(runs: Sequence[Outcome], metrics: Sequence[str], study: StudyOutcome) -> Row:
    """The majority baseline on the same test rows, as means over the runs."""
    each = [
        _majority(run.confusion, study.favourable, len(study.compared)) for run in runs if run.confusion is not None
    ]
    means = {name: fmean(one[name] for one in each) for name in each[0]}
    return row(MAJORITY, *(means.get(name, math.nan) for name in metrics), "")


def _majority(counts: Counts, favourable: int, compared: int) -> dict[str, float]:
    groups = [[sum(part[label][group] for part in counts) for label in range(len(counts))]
              for group in range(len(counts[0][0]))]  # rows by group and label  # fmt: skip
    actual = [sum(label) for label in zip(*groups, strict=True)]
    usual = actual.index(max(actual))
    shares = [own[usual] / sum(own) for own in groups[: compared or None] if sum(own) > 0]
    return {
        "accuracy": max(actual) / sum(actual) if sum(actual) > 0 else math.nan,
        "dpd": 0.0,
        "eod": 0.0,
        "equalized_odds": 0.0,
        "worst_group_accuracy": min(shares, default=math.nan),
        "balanced_accuracy": 1 / sum(rows > 0 for rows in actual) if any(actual) else math.nan,
        "selection_rate": float(usual == favourable),
    }
