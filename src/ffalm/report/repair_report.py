"""What repaired thresholds do, in sentences and tables, for terminal and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ffalm.report.answer_report import (
    NEEDS_GROUP,
    gap_sentence,
    mean_gaps,
    rates_of_groups,
    rows_to_confirm,
    unjudged,
)
from ffalm.report.summary import metric_title
from ffalm.report.tables import Cell, Column, Section, Table, percent, row
from ffalm.targets.answer import Candidate, Part
from ffalm.targets.target import TITLES

if TYPE_CHECKING:
    from ffalm.targets.score_repair import RepairedScores

_FITTED = (
    "No test rows were given: these numbers are of the rows that the thresholds were fitted to, so expect somewhat "
    "larger gaps on others. --test or --test-share judges other rows, which alone can show that a target is met with "
    "confidence."
)


def sentences(result: RepairedScores) -> list[str]:
    """The result, what it costs, how sure it is and what it needs, in reading order."""
    scored, target, chosen = result.scored, result.target, result.answer.chosen
    gaps = "; ".join(gap_sentence(bound, scored) for bound in target.bounds)
    rows = sum(group.rows for group in scored.groups)
    lines = [
        f"{_title(result, chosen.kind).capitalize()}: {_merit(result, chosen)} on {rows:,.0f} {result.judged_on} rows, "
        f"{gaps}. {target}: {result.verdict}."
    ]
    for title, one in _baselines(result).items():
        flaw = f"; degenerate: {one.degenerate}" if one.degenerate else ""
        lines.append(f"{title}: {_merit(result, one)}, {mean_gaps(one, target, _part(result))}{flaw}.")
    if result.judged_on == "calibration":
        lines.append(_FITTED)
    if chosen.within(target) == 0:
        lines.append("No thresholds of this kind are within the target on the calibration rows; these come nearest.")
    if chosen.degenerate:
        lines.append(f"All thresholds are degenerate; of these, {chosen.degenerate}.")
    if result.verdict == "cannot be judged":
        remedy = "Leave such groups out, merge them with others, or bring more rows."
        lines += unjudged(target, scored, f"{result.judged_on} rows", remedy)
    if result.verdict == "met in the sample":
        lines += rows_to_confirm(target, scored)
    if chosen.kind in ("groups", "randomised"):
        lines.append(f"{NEEDS_GROUP}--repair single answers without it.")
    if chosen.kind == "randomised":
        lines.append(
            "Thresholds are drawn for each row from its id: the same id, the same answer. Without ids they are drawn "
            "from its content, and apart for rows of the same content: the same file, the same answers."
        )
    return [*lines, *result.notes]


def _baselines(result: RepairedScores) -> dict[str, Candidate]:
    """The single thresholds to compare with: the best within the target, and the best whatever the gaps."""
    by_kind = {one.kind: one for one in result.answer.candidates}
    found = {"One threshold within the target": by_kind["single"]}
    if by_kind["single"].within(result.target) == 0:
        found = {"One threshold for all, none of which is within the target": by_kind["single"]}
    return found | {"Best threshold whatever the gaps": result.baseline}


def _title(result: RepairedScores, kind: str) -> str:
    return "cheapest threshold" if kind == "accurate" and result.costs else TITLES[kind]


def _part(result: RepairedScores) -> Part:
    return "test" if result.judged_on == "test" else "validation"


def _merit(result: RepairedScores, one: Candidate) -> str:
    part = _part(result)
    text = f"accuracy {percent(one.mean('accuracy', part), 1)} %"
    return text if result.costs is None else f"{text}, mean cost {one.mean('cost', part):.4f}"


def thresholds(result: RepairedScores) -> Table:
    """Each group's threshold, and how well the score ranks within the group."""
    errors = result.calibration_error
    columns = [Column("Group"), Column("favourable if score is at least"), Column("AUC", "number", 2)]
    if errors:
        columns.append(Column("calibration error", "percent", 1))
    rows = []
    for name, mix in result.thresholds.groups.items():
        text = ", ".join(_exact(value) + (f" (chance {chance:.0%})" if len(mix) > 1 else "") for value, chance in mix)
        rows.append(row(name, text, result.group_auc[name], *([errors[name]] if errors else [])))
    rows.append(row("not known", _exact(result.thresholds.single), *[None] * (len(columns) - 2)))
    caption = "AUC: how well the score ranks within the group, which no threshold changes."
    if errors:
        caption += " Calibration error: mean distance between probability and observed share, in points."
    return Table("Thresholds", columns, [Section(rows)], caption)


def _exact(threshold: float) -> str:
    """A threshold in full precision: it is one of the scores, whose rows it would lose if it were rounded up."""
    short = f"{threshold:.6g}"
    return short if float(short) == threshold else repr(float(threshold))


def who_pays(result: RepairedScores) -> Table:
    """Each group's rates before (the best threshold whatever its gaps) and after."""
    before, chosen = result.baseline.kind, result.answer.chosen.kind
    caption = f"Before: {_title(result, before)}; after: {_title(result, chosen)}; {result.judged_on} rows."
    return rates_of_groups(result.before.groups, result.scored.groups, caption)


def kinds(result: RepairedScores, brief: bool = False) -> Table:
    """Every kind of thresholds that was tried; `brief` is for terminals."""
    asked = [bound.metric for bound in result.target.bounds]
    metrics = ["accuracy", *(asked if brief else dict.fromkeys([*asked, "dpd", "eod"]))]
    parts: dict[Part, str] = {"validation": "calibration"}
    if "test" in result.parts:
        parts["test"] = "test"
    cost = [Column("mean cost", "number", 3, over=title) for title in parts.values()] if result.costs else []
    columns = [Column(metric_title(name), "percent", 1, over=title) for title in parts.values() for name in metrics]
    rows = []
    for one in result.answer.candidates:
        bold = one is result.answer.chosen
        values = [one.mean(name, part) for part in parts for name in metrics]
        values += [one.mean("cost", part) for part in parts] if result.costs else []
        cells = [Cell(value, bold=bold) for value in values]
        rows.append(
            row(
                Cell(_title(result, one.kind), bold=bold),
                *cells,
                note=one.degenerate and f"degenerate: {one.degenerate}",
            )
        )
    return Table(
        "Kinds of thresholds",
        [Column("Thresholds"), *columns, *cost],
        [Section(rows)],
        "In percent of the calibration and test rows.",
    )


def to_plain(result: RepairedScores) -> dict[str, Any]:
    """`repair.json`."""
    return {
        "target": str(result.target),
        "verdict": result.verdict,
        "judged_on": result.judged_on,
        "favourable": result.label_names[-1],
        "thresholds": result.thresholds.to_plain(),
        "test": result.test,
        "calibration": result.calibration,
        "bounds": result.scored.ends,
        "kinds": kinds(result).records(),
        "groups": who_pays(result).records(),
        "auc": result.group_auc,
        "calibration_error": result.calibration_error,
        "explanation": sentences(result),
    }
