"""Charts below one another on a sheet of white paper, as SVG: what PNG and PDF are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffalm.report.curves import Chart, Key, Panel
from ffalm.report.drawing import PALETTE
from ffalm.report.plots import SMALL
from ffalm.report.rendering import environment

_COLUMNS, _GAP, _MARGIN = 3, 24, 12
_TITLE, _HEADING, _LEGEND, _NAME = 34, 26, 22, 20  # heights of lines of text
_LETTER = 6.6  # mean width of a letter of the legend
_SWATCH = 44  # a legend's line with the room beside it
WIDTH = _COLUMNS * SMALL[0] + (_COLUMNS - 1) * _GAP + 2 * _MARGIN


@dataclass(frozen=True)
class Placed:
    """A title, heading, legend entry or panel at its place on the sheet."""

    x: float
    y: float
    content: str | Key | Panel
    kind: str


def sheet(charts: Sequence[Chart]) -> str:
    """The SVG of these charts."""
    placed: list[Placed] = []
    y = float(_MARGIN)
    for chart in charts:
        placed.append(Placed(_MARGIN, y + 16, chart.title, "title"))
        y = _legend(chart.keys, placed, y + _TITLE)
        for heading, panels in chart.blocks:
            if heading:
                placed.append(Placed(_MARGIN, y + 14, heading, "heading"))
                y += _HEADING
            for place, panel in enumerate(panels):
                x = _MARGIN + (place % _COLUMNS) * (SMALL[0] + _GAP)
                row = y + place // _COLUMNS * (SMALL[1] + _NAME + _GAP)
                placed.append(Placed(x, row, panel, "panel"))
            y += -(-len(panels) // _COLUMNS) * (SMALL[1] + _NAME + _GAP)
    template = environment().get_template("sheet.svg")
    return template.render(placed=placed, width=WIDTH, height=round(y), palette=PALETTE, name=_NAME)


def _legend(keys: Sequence[Key], placed: list[Placed], y: float) -> float:
    """Place the entries of a legend in lines; gives where the next thing may stand."""
    if not keys:
        return y
    x = float(_MARGIN)
    for key in keys:
        width = _SWATCH + _LETTER * len(key.label)
        if x > _MARGIN and x + width > WIDTH - _MARGIN:
            x, y = float(_MARGIN), y + _LEGEND
        placed.append(Placed(x, y, key, "key"))
        x += width
    return y + _LEGEND + 8
