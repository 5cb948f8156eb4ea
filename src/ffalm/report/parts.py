"""Pieces that the sections of the page share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from ffalm.report.markup import Markup, element
from ffalm.report.tables import skew

NOTHING = Markup("")


def section(name: str, heading: str, *children: str) -> Markup:
    """A section under its heading, or nothing where all its children are empty."""
    if not any(children):
        return NOTHING
    title = element("h2", heading, id=f"{name}-heading")
    return element("section", title, *children, aria_labelledby=f"{name}-heading")


def plural(count: int, word: str) -> str:
    """A count with its word."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def bodies(
    rows: Iterable[Any],
    width: int,
    several: bool,
    render: Callable[[Any], Markup],
    alpha: Callable[[Any], float | None] = lambda row: row.alpha,
) -> list[Markup]:
    """One table body for each skew, headed by it where there are several."""
    found = []
    for value, group in groupby(rows, key=alpha):
        head = element("tr", element("th", skew(value), colspan=width, scope="rowgroup", class_="skew"))
        found.append(element("tbody", head if several else NOTHING, *[render(row) for row in group]))
    return found


def scroll(table: Markup, tall: bool = False) -> Markup:
    """A table that may be wider than the window, or much taller."""
    return element("div", table, class_="scroll tall" if tall else "scroll", tabindex="0", role="group")
