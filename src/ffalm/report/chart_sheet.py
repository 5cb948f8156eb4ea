"""SVG of charts below one another on a white background, for files and for `Study.plot`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ffalm.report.curves import Chart, Key
from ffalm.report.plots import Plot
from ffalm.report.rendering import environment
from ffalm.system.files import write_atomic

#: Okabe and Ito's colours, distinguishable with any colour vision; yellow and black are left out because they
#: vanish on a light or a dark page.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
_COLUMNS, _GAP, _MARGIN = 3, 24, 12
_TITLE, _HEADING, _LEGEND, _NAME = 34, 26, 22, 20  # heights of lines of text
_LETTER = 6.6  # mean width of a letter of the legend
_SWATCH = 44  # a legend's line with the room beside it
_LEAST_WIDTH = 560  # for a title and a legend


@dataclass(frozen=True)
class Placed:
    """A title, heading, legend entry or panel at its place on the sheet."""

    x: float
    y: float
    content: str | Key | Plot
    kind: str


@dataclass(frozen=True)
class Picture:
    """An SVG that notebooks show and `save` writes."""

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the SVG file."""
        return write_atomic(Path(path), self.svg)


def sheet(charts: Sequence[Chart]) -> str:
    """The SVG of these charts."""
    rows = [panels[:_COLUMNS] for chart in charts for _, panels in chart.blocks]
    width = max([_LEAST_WIDTH, *(sum(panel.size[0] + _GAP for panel in row) - _GAP + 2 * _MARGIN for row in rows)])
    placed: list[Placed] = []
    y = float(_MARGIN)
    for chart in charts:
        placed.append(Placed(_MARGIN, y + 16, chart.title, "title"))
        y = _legend(chart.keys, placed, y + _TITLE, width)
        for heading, panels in chart.blocks:
            if heading:
                placed.append(Placed(_MARGIN, y + 14, heading, "heading"))
                y += _HEADING
            across, down = panels[0].size[0] + _GAP, panels[0].size[1] + _NAME + _GAP
            for place, panel in enumerate(panels):
                row, column = divmod(place, _COLUMNS)
                placed.append(Placed(_MARGIN + column * across, y + row * down, panel, "panel"))
            y += -(-len(panels) // _COLUMNS) * down
    template = environment().get_template("sheet.svg")
    return template.render(placed=placed, width=width, height=round(y), palette=PALETTE, name=_NAME)


def _legend(keys: Sequence[Key], placed: list[Placed], y: float, sheet_width: int) -> float:
    """Place the entries of a legend in lines; returns the y coordinate below it."""
    if not keys:
        return y
    x = float(_MARGIN)
    for key in keys:
        width = _SWATCH + _LETTER * len(key.label)
        if x > _MARGIN and x + width > sheet_width - _MARGIN:
            x, y = float(_MARGIN), y + _LEGEND
        placed.append(Placed(x, y, key, "key"))
        x += width
    return y + _LEGEND + 8
