"""The tables of a study: results, changes against the baseline, groups, clients and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import Any

from ffalm.outcome import Counts, StudyOutcome
from ffalm.report.summary import (
    ALPHA,
    HEADS,
    SPELLED_OUT,
    AlgorithmSummary,
    Change,
    baseline_label,
    changes,
    metric_names,
    more_is_better,
    pick,
    skew,
    summarise,
)
from ffalm.report.tables import Cell, Column, Kind, Row, Section, Table, row

#: Clients beyond this are left out of the table of one model at each client.
MOST_CLIENTS = 100
_INTERVALS = (
    "bars and brackets are 95 % intervals (Student's t over the seeds that both finished, one comparison at a time)"
)
_EVEN = "where all seeds differ by the same amount there is no interval, and it takes six seeds to be clear (sign test)"
_ONE_PAIR = "with one pair of runs there is no interval"
RUN_COLUMNS = ("alpha", "algorithm", "metric", "mean", "std", "n", "n_diverged", "n_undefined", "low", "high")


def results(study: StudyOutcome) -> Table:
    """The paper's table: algorithms down, accuracy and gaps across, in percent."""
    summaries = summarise(study)
    several = len(study.alphas()) > 1
    rows = [
        (summary.alpha, row(summary.label, *map(summary.cell, HEADS), summary.seeds, note=summary.note))
        for summary in summaries
    ]
    return Table(
        title=study.title + ("" if several or not summaries else skew(summaries[0].alpha, ", ")),
        columns=[Column("Algorithm"), *(Column(head, "percent") for head in HEADS.values()), Column("Seeds", "count")],
        sections=by_skew(study, rows),
        caption=how_to_read(summaries, len(study.compared)),
        key=ALPHA if several else "",
    )


def tidy(study: StudyOutcome) -> Table:
    """One row for every skew, algorithm and test metric, as fractions: every metric measured, for machines."""
    rows = []
    for summary in summarise(study, metric_names(study)):
        for metric, cell in summary.cells.items():
            low, high = cell.interval or (None, None)
            counts = (cell.n, summary.diverged, cell.undefined)
            rows.append(row(summary.alpha, summary.label, metric, cell.mean, cell.std, *counts, low, high))
    return Table("", [Column(name) for name in RUN_COLUMNS], [Section(rows)])


def against_baseline(study: StudyOutcome) -> Table | None:
    """Every algorithm against the baseline, paired by seed; None if there is nothing to compare."""
    differences = changes(study)
    if not differences:
        return None
    columns = [
        Column(
            head,
            "points",
            graphic="interval",
            reach=_reach(change for change in differences if change.metric == metric),
        )
        for metric, head in HEADS.items()
    ]
    by_algorithm = [list(group) for _, group in groupby(differences, key=lambda change: (change.alpha, change.label))]
    caption = f"Difference from {baseline_label(study)} in percentage points, taken seed by seed and averaged; "
    notes = {
        _INTERVALS: any(change.interval for change in differences),
        _EVEN: any(change.even for change in differences),
    }
    caption += f"{'; '.join(note for note, applies in notes.items() if applies) or _ONE_PAIR}."
    reasons = {(one.alpha, one.label): one.degenerate for one in summarise(study)}
    rows = []
    for of_algorithm in by_algorithm:
        alpha, label = of_algorithm[0].alpha, of_algorithm[0].label
        reason, of_baseline = reasons[alpha, label], reasons[alpha, baseline_label(study) or ""]
        degenerate = "degenerate" if reason else "baseline degenerate" if of_baseline else ""  # instead of a verdict
        cells = [
            replace(_change(change), verdict=degenerate) if degenerate else _change(change) for change in of_algorithm
        ]
        rows.append((alpha, row(label, *cells, note=f"degenerate: {reason}" if reason else "")))
    return Table("", [Column("Algorithm"), *columns], by_skew(study, rows), caption, style="changes")


def by_group(study: StudyOutcome) -> Table | None:
    """The rates of each group on test rows; None if the runs kept no counts.

    Unlike DPD and EOD, this table shows which group is favoured, and the number of rows.
    """
    rows = [
        (alpha, row(label, group, size, *rates))
        for alpha in study.alphas()
        for label in study.labels()
        for group, size, rates in group_rates(study, alpha, label)
    ]
    if not rows:
        return None
    outcome = study.task.get("favourable", "favourable")
    heads = (f"true “{outcome}”", f"predicted “{outcome}”", f"true “{outcome}” found", "accuracy")
    columns = [Column("test rows", "count"), *(Column(head, "percent", decimals=1) for head in heads)]
    caption = (
        "As trained, in percent of the group's test rows; found: in percent of those whose true outcome is "
        f"“{outcome}”. Means over the runs that finished. DPD is the largest difference between groups in predicted "
        f"“{outcome}”, EOD in found, each taken run by run."
    )
    sections = by_skew(study, rows)
    return Table("", [Column("Algorithm"), Column("Group"), *columns], sections, caption, names=2, style="groups")


def group_rates(study: StudyOutcome, alpha: float | None, label: str) -> list[tuple[str, float, list[float]]]:
    """Each group with its test rows, base rate, selection rate, true positive rate and accuracy, as means over runs."""
    runs = [run.confusion for run in pick(study, alpha, label) if run.diverged is None and run.confusion]
    rates_by_group = []
    for place in range(len(study.group_names) if runs else 0):
        of_runs = [_rates(counts, place, study.favourable) for counts in runs]
        size, *rates = (_mean(values) for values in zip(*of_runs, strict=True))
        rates_by_group.append((study.group_title(place), size, rates))
    return rates_by_group


def clients(study: StudyOutcome) -> Table | None:
    """The clients of the first seed's federation with their sizes and shares; None if none are known."""
    flat = [dict(_flat(client)) for client in study.clients]
    names = list(dict.fromkeys(name for one in flat for name in one))
    if not names:
        return None
    columns = [Column(names[0]), *(_column(name, [one.get(name) for one in flat]) for name in names[1:])]
    rows = [row(str(one.get(names[0], "")), *(_plain(one.get(name)) for name in names[1:])) for one in flat]
    caption = f"{len(rows)} client{'' if len(rows) == 1 else 's'} of the first seed's federation."
    return Table("", columns, [Section(rows)], caption, style="clients")


def per_client(study: StudyOutcome) -> Table | None:
    """One model on each client's own rows, the least accurate first; None if that is not known."""
    shown = [name for name in HEADS if any(name in one for one in study.per_client)]
    if not shown:
        return None
    ordered = sorted(study.per_client, key=lambda one: (not math.isfinite(one[shown[0]]), one[shown[0]]))
    rows = [row(one["client"], *(one.get(name, math.nan) for name in shown)) for one in ordered[:MOST_CLIENTS]]
    left = f", {len(rows)} of {len(ordered)} clients" if len(rows) < len(ordered) else ""
    what = f"{study.per_client_of}, as trained, on each client's own rows, in percent"
    caption = f"{what}, the least accurate first{left}."
    return Table(
        "", [Column("client"), *(Column(HEADS[name], "percent", 1) for name in shown)], [Section(rows)], caption
    )


def settings(study: StudyOutcome) -> Table | None:
    """Every choice a reader needs to judge the numbers."""
    rows = [row(name, value) for name, value in study.choices.items()]
    return Table("", [Column(""), Column("")], [Section(rows)], style="settings") if rows else None


def by_skew(study: StudyOutcome, rows: Iterable[tuple[float | None, Row]]) -> list[Section]:
    """One section for each skew, headed by it where there are several."""
    sections = []
    for alpha, same in groupby(rows, key=lambda pair: pair[0]):
        heading = skew(alpha) if len(study.alphas()) > 1 else ""
        sections.append(Section([one for _, one in same], heading, "none" if alpha is None else f"{alpha:g}"))
    return sections


def how_to_read(found: Sequence[AlgorithmSummary], groups: int) -> str:
    """A caption that explains the cells of the results, as far as it applies."""
    cells = [cell for one in found for cell in one.cells.values()]
    parts = ["test metrics in percent"]
    if any(cell.std is not None for cell in cells):
        parts.append("mean ± sample standard deviation over the seeds that finished")
    if any(cell.interval is not None for cell in cells):
        parts.append("95 % interval over the sampling of the test rows in brackets where there is one seed")
    if any(cell.best for cell in cells):
        parts.append(
            "best mean in bold" + (", never of a degenerate model" if any(x.degenerate for x in found) else "")
        )
    gaps = f", each the largest difference between two of {groups} groups" if groups > 2 else ""
    return f"{', '.join(parts)}. {SPELLED_OUT}{gaps}."


def _change(change: Change) -> Cell:
    if not math.isfinite(change.mean):
        return Cell("no pair of seeds to compare")
    better = (change.mean > 0) == more_is_better(change.metric)
    verdict = ("better" if better else "worse") if change.clear else "not clear"
    return Cell(change.mean, interval=change.interval, verdict=verdict if change.n > 1 else "one pair")


def _reach(found: Iterable[Change]) -> float:
    ends = [abs(end) for change in found for end in (*(change.interval or ()), change.mean) if math.isfinite(end)]
    return max(ends, default=0.0) or 1.0


def _rates(counts: Counts, group: int, favourable: int) -> tuple[float, ...]:
    """The rows of a group and the shares that the table shows; NaN for a share of no rows."""
    table = [[cells[group] for cells in labels] for labels in counts]  # by prediction and label
    total = sum(map(sum, table))
    deserving = sum(predicted[favourable] for predicted in table)
    right = sum(predicted[place] for place, predicted in enumerate(table))
    parts = [
        (deserving, total),
        (sum(table[favourable]), total),
        (table[favourable][favourable], deserving),
        (right, total),
    ]
    return (total, *(part / whole if whole > 0 else math.nan for part, whole in parts))


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if math.isfinite(value)]
    return fmean(defined) if defined else math.nan


def _column(name: str, values: Sequence[Any]) -> Column:
    """A column of clients: shares as bars of a whole, other numbers as bars of the column's largest."""
    numbers = [value for value in values if _is_number(value)]
    largest = max(map(abs, numbers), default=0)
    share = largest <= 1 and any(isinstance(value, float) for value in numbers)
    if not numbers:
        return Column(name)
    kind: Kind = "share" if share else "count" if all(isinstance(value, int) for value in numbers) else "number"
    return Column(name, kind, 3, graphic="bar", reach=1.0 if share else largest or 1.0)


def _plain(value: Any) -> str | float | None:
    return value if value is None or _is_number(value) else str(value)


def _flat(client: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in client.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}: ")
        else:
            yield f"{before}{key}", value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
