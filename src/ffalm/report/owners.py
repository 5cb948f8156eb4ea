"""The page's table of clients: who owned what, with bars for sizes and shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ffalm.outcome import StudyOutcome
from ffalm.report.markup import Markup, element
from ffalm.report.parts import NOTHING, plural, scroll
from ffalm.report.tables import percent


def owners(study: StudyOutcome) -> Markup:
    """Who owned what: one row a client, with bars for its size and its shares."""
    rows = [dict(_flat(client)) for client in study.clients]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return NOTHING
    columns = [_column([row.get(name) for row in rows]) for name in names[1:]]
    head = element("tr", *[element("th", name.replace("_", " "), scope="col") for name in names])
    body = [
        element("tr", element("th", str(row.get(names[0], "")), scope="row"), *cells)
        for row, cells in zip(rows, _transposed(columns, len(rows)), strict=True)
    ]
    caption = element("caption", f"{plural(len(rows), 'client')} of the first seed's federation.")
    table = element("table", caption, element("thead", head), element("tbody", *body), class_="clients")
    return scroll(table, tall=len(rows) > 25)


def _column(values: list[Any]) -> list[Markup]:
    """The cells of one column: shares as bars of a whole, other numbers as bars of the column's largest."""
    numbers = [value for value in values if _is_number(value)]
    largest = max(map(abs, numbers), default=0)
    share = largest <= 1 and any(isinstance(value, float) for value in numbers)
    return [_cell(value, 1.0 if share else largest or 1, share) for value in values]


def _cell(value: Any, whole: float, share: bool) -> Markup:
    if not _is_number(value):
        return element("td", "" if value is None else str(value))
    text = f"{percent(value, 0)} %" if share else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    bar = element("span", class_="bar", style=f"--part:{max(0.0, 100 * value / whole):.1f}%", aria_hidden="true")
    return element("td", element("span", text, class_="amount"), bar, class_="number")


def _flat(client: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in client.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}: ")
        else:
            yield f"{before}{key}", value


def _transposed(columns: list[list[Markup]], rows: int) -> list[list[Markup]]:
    return [[column[index] for column in columns] for index in range(rows)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
