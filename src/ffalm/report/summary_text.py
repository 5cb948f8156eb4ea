"""The results in sentences, even if the fair algorithm is worse.

A difference is called clear only if its 95 % interval over paired seeds excludes zero; with one seed, where the
test intervals do not overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ffalm.outcome import HEADLINE, StudyOutcome
from ffalm.report.summary import (
    AlgorithmSummary,
    Change,
    Statistic,
    baseline_label,
    changes,
    metric_name,
    metric_title,
    more_is_better,
    summarise,
)
from ffalm.report.tables import percent, signed

GAPS = [metric for metric, (_, up) in HEADLINE.items() if not up]
#: The gaps by their full names, for their first mention.
LONG_NAMES = {"dpd": "demographic parity difference (DPD)", "eod": "equal opportunity difference (EOD)"}

Found = dict[tuple[str, str], Change]
"""Changes against the baseline by algorithm and metric."""


@dataclass(frozen=True)
class SummaryText:
    """The sentences about one skew: the answer first, then each algorithm against the baseline."""

    alpha: float | None
    answer: list[str]
    details: list[str]


def summary_text(study: StudyOutcome) -> list[SummaryText]:
    """One text for every skew."""
    rows, differences = summarise(study), changes(study)
    baseline = baseline_label(study)
    return [
        _text(
            alpha,
            [row for row in rows if row.alpha == alpha],
            {(change.label, change.metric): change for change in differences if change.alpha == alpha},
            baseline or "",
        )
        for alpha in study.alphas()
    ]


def _text(alpha: float | None, rows: list[AlgorithmSummary], found: Found, baseline: str) -> SummaryText:
    reference = next((row for row in rows if row.label == baseline), None)
    if reference is None or len(rows) < 2:
        return SummaryText(alpha, [_alone(row) for row in rows], [])
    answer = [_winner(metric, rows, reference, found) for metric in GAPS]
    details = [_against(row, reference, found) for row in rows if row is not reference]
    return SummaryText(alpha, answer, details)


def _alone(row: AlgorithmSummary) -> str:
    """An algorithm without a baseline: its numbers with their spread."""
    if row.finished == 0:
        return f"{row.label} diverged in {_runs(row.runs)}: there is no result."
    parts = [f"{metric_name(metric)} {_number(cell)}{_sure(cell)}" for metric, cell in row.cells.items()]
    over = f" (mean of {row.finished} runs)" if row.finished > 1 else ""
    caution = f". Its model is degenerate: {row.degenerate}" if row.degenerate else ""
    return f"{row.label}{over}: {', '.join(parts)}{_lost(row)}{caution}."


def _winner(metric: str, rows: list[AlgorithmSummary], reference: AlgorithmSummary, found: Found) -> str:
    """Which algorithm has the smallest gap, against the baseline, and whether the difference is clear."""
    name = LONG_NAMES[metric]
    best = [row for row in rows if row.cells[metric].best]
    if not best:
        why = "degenerate or has no value" if any(row.degenerate for row in rows) else "without a value"
        return f"For the {name} every algorithm is {why}, so none can be called fairer by it."
    if reference in best:
        others = [row.label for row in best if row is not reference]
        shared = f", shared with {' and '.join(others)}" if others else ""
        value = f"{_number(reference.cells[metric])}{shared}{_lost(reference)}"
        return f"{reference.label} has the smallest {name}: {value}. No other algorithm improved on it."
    row = best[0]
    names = " and ".join(other.label for other in best)
    winner = f"{names} {'have' if len(best) > 1 else 'has'} the smallest {name}"
    if reference.degenerate or not math.isfinite(reference.cells[metric].mean):
        lack = "is degenerate" if reference.degenerate else "has no value to compare it with"
        return f"{winner}: {_number(row.cells[metric])}{_lost(row)}. {reference.label} {lack}."
    small, large = row.cells[metric].mean, reference.cells[metric].mean
    decimals = 1 if percent(small, 1) != percent(large, 1) else 2
    versus = f"{percent(small, decimals)} against {reference.label}'s {percent(large, decimals)}"
    cost = _cost(row, reference, found.get((row.label, "accuracy")))
    verdict = _verdict(metric, row, reference, found)
    return f"{winner}: {versus}{cost}{_price(metric, row, found)}{_lost(row)}. {verdict}"


def _against(row: AlgorithmSummary, reference: AlgorithmSummary, found: Found) -> str:
    """One algorithm against the baseline: where it is better, worse or not clearly different."""
    if row.finished == 0:
        return f"{row.label} diverged in {_runs(row.runs)}: it has no result."
    if row.degenerate:
        return f"{row.label} is degenerate, so its gaps are no result: {row.degenerate}{_lost(row)}."
    said: dict[str, list[str]] = {}
    for metric in [*GAPS, "accuracy"]:
        change = found.get((row.label, metric))
        if change is None or not math.isfinite(change.mean):
            said.setdefault("nothing to compare in", []).append(metric_title(metric))
            continue
        if float(percent(abs(change.mean), 1)) == 0.0:
            said.setdefault("the same, to a tenth of a point, in", []).append(metric_title(metric))
            continue
        certainty = _certainty(metric, change, row.cells[metric], reference.cells[metric])
        said.setdefault(certainty, []).append(f"{metric_title(metric)} ({_size(change)})")
    parts = [f"{certainty} {_listed(metrics)}" for certainty, metrics in said.items()]
    return f"{row.label}: {'; '.join(parts)}{_lost(row)}."


def _certainty(metric: str, change: Change, cell: Statistic, other: Statistic) -> str:
    """How sure a change is, as the beginning of its clause."""
    better = "better" if (change.mean > 0) == more_is_better(metric) else "worse"
    if change.clear:
        return f"clearly {better} in"
    if change.even:
        return f"{better} by the same amount in {change.n} seeds, too few to be sure, in"
    if change.interval is not None:
        return "within the spread of the seeds in"
    if cell.interval is None or other.interval is None:
        return f"{better}, in one pair of runs, in"
    return "test intervals overlap in" if _overlap(cell, other) else f"{better} beyond the test intervals in"


def _size(change: Change) -> str:
    return f"{percent(abs(change.mean), 1)} points {'higher' if change.mean > 0 else 'lower'}"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _verdict(metric: str, row: AlgorithmSummary, reference: AlgorithmSummary, found: Found) -> str:
    """Whether the seeds, or with one seed the test intervals, support the difference."""
    change = found.get((row.label, metric))
    if change is not None and change.even:
        moved = (
            f"{metric_name(metric)} {'rose' if change.mean > 0 else 'fell'} by the same amount in all {change.n} seeds"
        )
        if change.clear:
            return f"But {moved}." if change.mean > 0 else f"{moved}."
        return f"But {moved}, which leaves no spread to judge it by: run more seeds before relying on it."
    if change is not None and change.interval is not None:
        low, high = change.interval
        if change.clear:
            ends = " to ".join(percent(end) for end in sorted((abs(low), abs(high))))
            moved = f"{metric_name(metric)} {'rose' if low > 0 else 'fell'} by {ends} points (95 %, paired by seed)"
            return f"But over the seeds that both finished {moved}." if low > 0 else f"{moved}."
        where = f"{signed(low)} to {signed(high)} points (95 %, paired by seed)"
        return f"But the difference is within the spread of the seeds: {where}, which includes zero."
    cell, other = row.cells[metric], reference.cells[metric]
    if cell.interval is None or other.interval is None:
        return "With a single pair of runs the spread is unknown: run more seeds before relying on it."
    if _overlap(cell, other):
        return "But it is one seed and the 95 % test intervals overlap: it may be chance."
    return "The 95 % test intervals do not overlap, but it is one seed: more would show the spread of training."


def _overlap(cell: Statistic, other: Statistic) -> bool:
    if cell.interval is None or other.interval is None:
        return True
    return cell.interval[0] <= other.interval[1] and other.interval[0] <= cell.interval[1]


def _cost(row: AlgorithmSummary, reference: AlgorithmSummary, change: Change | None) -> str:
    """What the smaller gap costs, or gains, in accuracy."""
    difference = row.cells["accuracy"].mean - reference.cells["accuracy"].mean
    if not math.isfinite(difference):
        return ""
    points = percent(abs(difference), 1)
    if float(points) == 0.0:
        return ", at no cost in accuracy"
    unclear = change is not None and change.interval is not None and not change.clear
    aside = " (within the spread of the seeds)" if unclear else ""
    if change is not None and change.even and not change.clear:
        aside = f" (the same in {change.n} seeds, too few to be sure)"
    if difference < 0:
        return f", at a cost of {points} points of accuracy{aside}"
    return f", with {points} points more accuracy{aside}"


def _price(metric: str, row: AlgorithmSummary, found: Found) -> str:
    """The other gaps that clearly grew while this one shrank."""
    grown = [found.get((row.label, other)) for other in GAPS if other != metric]
    clear = [change for change in grown if change is not None and change.clear and change.mean > 0]
    return "".join(f", and with {metric_name(change.metric)} {_size(change)}" for change in clear)


def _lost(row: AlgorithmSummary) -> str:
    return f"; this leaves out {row.diverged} of its {row.runs} runs, which diverged" if row.diverged else ""


def _number(cell: Statistic) -> str:
    return percent(cell.mean, 1) if math.isfinite(cell.mean) else "undefined"


def _sure(cell: Statistic) -> str:
    if cell.std is not None:
        return f" ± {percent(cell.std, 1)}"
    if cell.interval is not None:
        return f" (95 % test interval {percent(cell.interval[0], 1)} to {percent(cell.interval[1], 1)})"
    return ""


def _runs(count: int) -> str:
    return "its only run" if count == 1 else f"all its {count} runs"
