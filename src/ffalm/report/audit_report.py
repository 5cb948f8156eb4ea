"""An audit in tables and sentences, for the terminal, as JSON and as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ffalm import __version__
from ffalm.auditing.audit_facts import AuditFacts, Estimate, Failure, GroupFacts, GroupingFacts
from ffalm.report.rendering import asset, environment
from ffalm.report.tables import Cell, Column, Section, Table, percent, row
from ffalm.system.files import file_of, write_atomic
from ffalm.targets.target import ROUNDING

#: Titles of the metrics that compare groups.
TITLES = {
    "accuracy": "accuracy",
    "dpd": "DPD",
    "eod": "EOD",
    "equalized_odds": "equalised odds difference",
    "impact_ratio": "impact ratio",
    "predictive_parity": "predictive parity difference",
    "accuracy_parity": "accuracy parity difference",
    "worst_group_accuracy": "worst group's accuracy",
    "auc": "AUC",
    "auc_gap": "AUC difference",
    "calibration_error": "largest calibration error",
}
_RATES = {
    "base_rate": "base rate",
    "selection_rate": "selected",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
    "precision": "precision",
    "accuracy": "accuracy",
}
_FOUR_FIFTHS = 0.8
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
#: A text that every page of an audit contains.
PAGE_MARK = "<title>Fairness of "
_RATIOS = ("impact_ratio", "auc", "auc_gap")  # shown as numbers
_SHARES = ("accuracy", "worst_group_accuracy")  # shown in percent; differences in points


def sentences(audit: AuditFacts) -> list[str]:
    """What matters most about each grouping, in reading order."""
    lines = [sentence for one in audit.groupings for sentence in _about(audit, one)]
    least = _FOUR_FIFTHS - ROUNDING
    below = [one.name for one in audit.groupings if one.metrics["impact_ratio"].value < least]
    if below:
        lines.append(
            f"The impact ratio is below 0.8, the four-fifths rule of thumb, by {'; '.join(below)}. A ratio above 0.8 "
            "is no proof of fairness, nor one below it of discrimination."
        )
    return lines


def _about(audit: AuditFacts, one: GroupingFacts) -> list[str]:
    lines = []
    gap, pair = one.metrics["dpd"], one.pairs.get("dpd")
    rates = {group.name: group.metrics["selection_rate"].value for group in one.groups}
    if math.isnan(gap.value):
        lines.append(f"{one.name}: a group has no rows to compare, so gaps are undefined.")
    elif pair is None:
        lines.append(f"{one.name}: “{audit.favourable}” is predicted for the same share of every group.")
    else:
        lines.append(
            f"{one.name}: “{audit.favourable}” is predicted for {percent(rates[pair.high], 1)} % of “{pair.high}” and "
            f"{percent(rates[pair.low], 1)} % of “{pair.low}”: DPD {_points(gap)}, impact ratio "
            f"{_number(one.metrics['impact_ratio'])}."
        )
        found = one.pairs.get("eod")
        if found is not None:
            lines.append(
                f"{one.name}: of those whose true outcome is “{audit.favourable}”, more of “{found.high}” are found "
                f"than of “{found.low}”: EOD {_points(one.metrics['eod'])}."
            )
    small = [group.name for group in one.groups if group.small]
    if small:
        compared = any(group.small and group.compared for group in one.groups)
        what = "compared all the same, since fewer than two groups are larger" if compared else "shown, not compared"
        lines.append(f"{one.name}: groups of fewer than {audit.min_group} rows are {what}: {'; '.join(small)}.")
    if one.unknown_rows and one.bounds is not None:
        low, high = one.bounds["dpd"]
        may_grow = _may_grow(audit, one)
        whose = "between the groups that are compared here" if may_grow else "of all rows"
        lines.append(
            f"{one.name}: {one.unknown_rows:,} rows have no group. Whatever groups they belong to, the DPD {whose} is "
            f"between {percent(low, 1)} and {percent(high, 1)} points."
        )
        if may_grow:
            lines[-1] += f" With some of them, {'; '.join(may_grow)} would be compared too, and may be farther off."
    return lines


def _may_grow(audit: AuditFacts, one: GroupingFacts) -> list[str]:
    """Small groups that would be large enough to compare if the rows without a group were theirs."""
    own = [group for group in one.groups if group.small and not group.compared]
    return [group.name for group in own if group.rows + one.unknown_rows >= audit.min_group]


def gaps(audit: AuditFacts, one: GroupingFacts, brief: bool = False) -> Table:
    """Every metric that compares groups, with its interval, the groups farthest apart and bounds."""
    columns = [Column("Metric"), Column("value"), Column(f"{100 * audit.level:g} % interval"), Column("farthest apart")]
    bounded = one.bounds or {}
    if bounded:
        columns.append(Column("with unknown groups"))
    rows = []
    for name, metric in one.metrics.items():
        pair = one.pairs.get(name)
        apart = "" if pair is None else f"{pair.high} > {pair.low}"
        apart += f" ({audit.label} = {pair.label})" if pair is not None and pair.label is not None and not brief else ""
        cells = [TITLES[name], metric_text(name, metric.value), ends_text(name, metric.low, metric.high), apart]
        if bounded:
            cells.append(ends_text(name, *bounded.get(name, (math.nan, math.nan))))
        rows.append(row(*cells))
    over = "Over the groups that are compared"
    if "accuracy" in one.metrics:
        over += "; accuracy and AUC over all rows" if "auc" in one.metrics else "; accuracy over all rows"
    among = " EOD: the same among those whose true outcome it is;" if "eod" in one.metrics else ""
    caption = (
        f"{over}. DPD: largest difference of the share predicted “{audit.favourable}”;"
        f"{among} impact ratio: smallest share over the largest."
    )
    if bounded:
        caption += (
            f" With unknown groups: the smallest and the largest value over every assignment of the "
            f"{one.unknown_rows:,} rows without a group, between the groups that are compared here."
        )
    return Table(f"Gaps by {one.name}", columns, [Section(rows)], caption, style="gaps")


def groups(audit: AuditFacts, one: GroupingFacts, intervals: bool = True) -> Table:
    """Each group's rates, without intervals on narrow terminals."""
    names = [name for name in _RATES if name in one.groups[0].metrics]
    columns = [Column("Group"), Column("rows", "count"), *(Column(_RATES[name], "percent", 1) for name in names)]
    columns.append(Column("impact ratio", "ratio", 3))
    rows = []
    for group in one.groups:
        cells = [_cell(group.metrics[name], intervals) for name in (*names, "impact_ratio")]
        rows.append(row(group.name, group.rows, *cells, note=_flag(audit, group)))
    caption = f"In percent of the group. Selected: predicted “{audit.favourable}”; "
    if "base_rate" in names:
        caption += (
            f"base rate: true outcome “{audit.favourable}”; TPR: selected of these; FPR: selected of the others; "
            "precision: true of the selected; "
        )
    caption += "impact ratio: selected over the highest of the compared groups'."
    return Table(f"Groups of {one.name}", columns, [Section(rows)], caption, style="groups")


def score_table(audit: AuditFacts, one: GroupingFacts) -> Table | None:
    """How well the score ranks and is calibrated within each group."""
    if not (audit.scored and "auc" in one.metrics):
        return None
    columns = [Column("Group"), Column("AUC", "ratio", 3)]
    if audit.probabilities:
        columns += [Column("calibration error", "percent", 1), Column("mean score - share favourable", "points", 1)]
    rows = []
    for group in one.groups:
        cells = [_cell(group.metrics["auc"])]
        if audit.probabilities:
            cells += [_cell(group.metrics[name]) for name in ("calibration_error", "mean_score_excess")]
        rows.append(row(group.name, *cells, note=_flag(audit, group)))
    caption = "AUC: probability that a favourable row of the group has a higher score than another (DeLong's interval)."
    if audit.probabilities:
        caption += (
            " Calibration error: mean distance between score and observed share over ten bins, in points; last column: "
            "above 0, the score promises too much for the group."
        )
    return Table(f"Scores by {one.name}", columns, [Section(rows)], caption)


def sweep(audit: AuditFacts, one: GroupingFacts) -> Table | None:
    """The metrics at other thresholds of the score."""
    if not one.sweep:
        return None
    names = list(one.sweep[0].metrics)
    columns = [Column("favourable from score", "number", 2), Column("selected", "percent", 1)]
    columns += [Column(TITLES[name], *(("ratio", 2) if name in _RATIOS else ("percent", 1))) for name in names]
    rows = [row(swept.threshold, swept.selected, *swept.metrics.values()) for swept in one.sweep]
    caption = "If the favourable outcome were predicted from this score up; in percent of all rows."
    return Table(f"Threshold sweep by {one.name}", columns, [Section(rows)], caption)


def failed_sentences(failures: Sequence[Failure]) -> list[str]:
    """Each condition of --fail-if that holds, and where."""
    return [
        f"{one.condition} holds by {one.grouping}: {one.metric} is "
        f"{'undefined' if math.isnan(one.value) else f'{one.value:.4f}'}."
        for one in failures
    ]


def to_plain(audit: AuditFacts, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """Everything, for machines."""
    return {**asdict(audit), "sentences": sentences(audit), "failures": [asdict(one) for one in failures]}


def page(audit: AuditFacts, failures: Sequence[Failure] = ()) -> str:
    """The page: self-contained, and its content security policy forbids every network request and script."""
    parts = [
        (one.name, [gaps(audit, one), groups(audit, one), score_table(audit, one)], sweep(audit, one))
        for one in audit.groupings
    ]
    facts = {
        **({"Data": audit.source} if audit.source else {}),
        "Predicted": audit.label,
        "Favourable outcome": audit.favourable,
        "Rows": f"{audit.rows:,}",
        "Groups": "; ".join(one.name for one in audit.groupings),
    }
    if audit.threshold is not None:
        facts["Predicted favourable from score"] = f"{audit.threshold:g}"
    columns = [one.name for one in audit.groupings if one.name.count(",") == 0] or [audit.groupings[0].name]
    return (
        environment()
        .get_template("audit.html")
        .render(
            title=f"Fairness of {audit.label} by {' and '.join(columns)}",
            policy=_POLICY,
            style=asset("page.css"),
            facts=facts,
            findings=sentences(audit),
            failures=failed_sentences(failures),
            parts=[(name, [table for table in tables if table is not None], swept) for name, tables, swept in parts],
            notes=audit.notes,
            made=f"Made by ffalm {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        )
    )


def write_page(audit: AuditFacts, file: str | Path, failures: Sequence[Failure] = ()) -> Path:
    """Write the page."""
    return write_atomic(file_of(file), page(audit, failures))


def _flag(audit: AuditFacts, group: GroupFacts) -> str:
    if group.small:
        return f"fewer than {audit.min_group} rows"
    return "" if group.compared else "no group given, not compared"


def _cell(metric: Estimate, interval: bool = True) -> Cell:
    known = interval and math.isfinite(metric.low) and math.isfinite(metric.high)
    return Cell(metric.value, interval=(metric.low, metric.high) if known else None)


def metric_text(name: str, value: float) -> str:
    """A metric with its unit: shares in percent, differences of shares in points, ratios as they are."""
    unit = "" if name in _RATIOS or math.isnan(value) else " %" if name in _SHARES else " points"
    return _bare(name, value) + unit


def ends_text(name: str, low: float, high: float) -> str:
    """Both ends of an interval of a metric; empty where it has none."""
    return "" if math.isnan(low) else f"{_bare(name, low)} to {_bare(name, high)}"


def _bare(name: str, value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}" if name in _RATIOS else percent(value, 1)


def _points(metric: Estimate) -> str:
    return f"{percent(metric.value, 1)} points ({percent(metric.low, 1)} to {percent(metric.high, 1)})"


def _number(metric: Estimate) -> str:
    if math.isnan(metric.value):
        return "undefined"
    return f"{metric.value:.2f} ({metric.low:.2f} to {metric.high:.2f})"
