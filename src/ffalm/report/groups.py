"""The page's table of groups: how each fares, so that a reader sees whom a gap favours and how many rows it rests on.

DPD and EOD are distances and name nobody; what is behind them is here, in counts of the test rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ffalm.outcome import Counts, StudyOutcome
from ffalm.report.markup import Markup, element
from ffalm.report.parts import NOTHING, bodies, scroll
from ffalm.report.summary import pick
from ffalm.report.tables import percent

_RATES = 4  # true share, predicted share, found, accuracy


@dataclass(frozen=True)
class GroupRow:
    """One group under one algorithm, as means over the runs that finished; NaN where no row says anything."""

    alpha: float | None
    label: str
    group: str
    rows: float
    rates: tuple[float, ...]


def groups(study: StudyOutcome) -> Markup:
    """Every algorithm's rates, a line a group; nothing where the runs kept no counts."""
    found = group_rows(study)
    if not found:
        return NOTHING
    outcome = study.task.get("favourable", "favourable")
    names = (f"true “{outcome}”", f"predicted “{outcome}”", f"true “{outcome}” found", "accuracy")
    heads = [element("th", name, scope="col", class_="number") for name in ("test rows", *names)]
    head = element(
        "thead", element("tr", *[element("th", name, scope="col") for name in ("Algorithm", "Group")], *heads)
    )
    body = bodies(found, _RATES + 3, len(study.alphas()) > 1, lambda row: _line(row, study.group_names))
    caption = element(
        "caption",
        f"In percent of the group's test rows, found: of those whose true outcome is “{outcome}”; mean over the runs "
        f"that finished. DPD is the largest distance between groups in predicted “{outcome}”, EOD that in found, each "
        "taken run by run.",
    )
    return scroll(element("table", caption, head, *body, class_="groups"))


def group_rows(study: StudyOutcome) -> list[GroupRow]:
    """The lines of the table, a skew and an algorithm at a time."""
    lines = []
    for alpha in study.alphas():
        for label in study.labels():
            runs = [run.confusion for run in pick(study, alpha, label) if run.diverged is None and run.confusion]
            for place, group in enumerate(study.group_names if runs else ()):
                found = [_rates(counts, place, study.favourable) for counts in runs]
                rates = tuple(_mean([one[1][rate] for one in found]) for rate in range(_RATES))
                lines.append(GroupRow(alpha, label, group, fmean(one[0] for one in found), rates))
    return lines


def _rates(counts: Counts, group: int, favourable: int) -> tuple[float, tuple[float, ...]]:
    """The rows of a group, and the shares of them that the table shows."""
    table = [[cells[group] for cells in labels] for labels in counts]  # by prediction and label
    total = sum(map(sum, table))
    deserving = sum(row[favourable] for row in table)
    right = sum(row[place] for place, row in enumerate(table))
    return total, (
        _share(deserving, total),
        _share(sum(table[favourable]), total),
        _share(table[favourable][favourable], deserving),
        _share(right, total),
    )


def _line(row: GroupRow, names: tuple[str, ...]) -> Markup:
    """A group's line; the algorithm is named once, beside the first of its groups."""
    first = row.group == names[0]
    name = element("th", row.label, scope="rowgroup", rowspan=len(names)) if first else NOTHING
    cells = [f"{row.rows:,.0f}", *(percent(rate, 1) if math.isfinite(rate) else "undefined" for rate in row.rates)]
    shown = [element("td", cell, class_="number") for cell in cells]
    return element("tr", name, element("th", row.group, scope="row"), *shown)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if math.isfinite(value)]
    return fmean(defined) if defined else math.nan
