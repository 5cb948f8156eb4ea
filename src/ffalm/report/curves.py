"""The curves of a study: metrics and duals by round, for the page and for `curves.svg`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ffalm.outcome import StudyOutcome
from ffalm.report.plots import SMALL, Line, Mark, MarkKind, Plot, YScale
from ffalm.report.series import Point, dual_points, metric_points
from ffalm.report.summary import skew

#: With more algorithms than colours, the colours repeat with dashes; several duals of one algorithm are dashed too.
COLOURS = 7
DASHES = ("", "6 3", "2 2", "8 2 2 2", "1 4", "3 6", "5 2 1 2 1 2", "4 1")
#: Duals of more groups than this are drawn without bands, which would cover the lines.
MOST_BANDS = 4
#: A dual beyond this size has blown up; a linear axis would flatten every other run.
BLOWN_UP = 50.0


@dataclass(frozen=True)
class Key:
    """How one algorithm, dual or kind of mark is drawn: an entry of a legend."""

    label: str
    colour: int | None  # index into the palette; None if the panel says which
    dash: str = ""
    kind: MarkKind | Literal["curve"] = "curve"


Curves = dict[Key, list[Point]]


@dataclass(frozen=True)
class Panel(Plot):
    """A plot, and for each of its curves the points that the page shows under the pointer."""

    curves: Curves = field(default_factory=dict)

    def values(self) -> list[dict[str, Any]]:
        """Each curve by name, a point as its place in the drawing, round, mean, lowest and highest."""
        return [
            {
                "name": key.label,
                "colour": key.colour,
                "points": [
                    [*self.at(one["round"], one["mean"]), one["round"], one["mean"], one["low"], one["high"]]
                    for one in points
                ],
            }
            for key, points in self.curves.items()
        ]


Block = tuple[str, Sequence[Plot]]
"""Panels with the heading above them."""


@dataclass(frozen=True)
class Chart:
    """Panels under one legend, in a block for each skew or data set."""

    name: str
    title: str
    keys: Sequence[Key]
    blocks: Sequence[Block]


def charts(study: StudyOutcome) -> list[Chart]:
    """The charts that a study has."""
    found = (metric_chart(study, "Validation metrics by round"), dual_chart(study))
    return [chart for chart in found if chart is not None]


def metric_chart(study: StudyOutcome, title: str) -> Chart | None:
    """Accuracy and gaps by round, a panel per metric; None without history."""
    keys = {
        label: Key(label, place % COLOURS, DASHES[place // COLOURS % len(DASHES)])
        for place, label in enumerate(study.labels())
    }
    blocks = _blocks(study, metric_points(study), "metric", lambda point: keys[point["algorithm"]])
    return Chart("metrics", title, list(keys.values()), blocks) if blocks else None


def dual_chart(study: StudyOutcome) -> Chart | None:
    """The duals by round, a panel per algorithm; None if no algorithm has any."""
    points = dual_points(study)
    dashes: dict[str, str] = {}
    for label in study.labels():  # each has its own panel, so each begins with a solid line
        own = dict.fromkeys(point["component"] for point in points if point["algorithm"] == label)
        dashes |= {name: DASHES[place % len(DASHES)] for place, name in enumerate(own)}
    colours = {label: place % COLOURS for place, label in enumerate(study.labels())}

    def key(point: Point) -> Key:
        return Key(point["component"], colours[point["algorithm"]], dashes[point["component"]])

    blocks = _blocks(study, points, "algorithm", key)
    keys = [Key(name, None, dash) for name, dash in dashes.items()] if len(dashes) > 1 else []
    return Chart("duals", "Duals by round", keys, blocks) if blocks else None


def _blocks(study: StudyOutcome, points: Sequence[Point], facet: str, key: Callable[[Point], Key]) -> list[Block]:
    """One block for each skew that has points, titled where there are several."""
    blocks: list[Block] = []
    for alpha in study.alphas():
        part = [point for point in points if point["alpha"] == alpha]
        panels: dict[str, Curves] = {}
        for point in part:
            panels.setdefault(point[facet], {}).setdefault(key(point), []).append(point)
        widest = max((abs(point[end]) for point in part for end in ("low", "high")), default=0.0)
        if panels:
            heading = skew(alpha) if len(study.alphas()) > 1 else ""
            symlog = facet == "algorithm" and widest > BLOWN_UP
            blocks.append((heading, [_panel(title, curves, symlog) for title, curves in panels.items()]))
    return blocks


def _panel(title: str, curves: Curves, symlog: bool) -> Panel:
    """A band over the range of the runs, their mean, and a cross where a run diverged."""
    lines, bands, marks = [], [], []
    for key, points in curves.items():
        colour = key.colour or 0
        lines.append(Line([(one["round"], one["mean"]) for one in points], "curve", colour, dash=key.dash))
        if any(one["high"] > one["low"] for one in points):
            edges = [(one["round"], one["high"]) for one in points] + [
                (one["round"], one["low"]) for one in points[::-1]
            ]
            bands.append(Line(edges, "band", colour))
        marks += [
            Mark(one["round"], one["stopped"], "stopped", colour, f"{key.label}: a run diverged here")
            for one in points
            if "stopped" in one
        ]
    crowded = len({one.get("component") for points in curves.values() for one in points}) > MOST_BANDS
    about = f"{title} by round for {', '.join(key.label for key in curves)}."
    shown = [*([] if crowded else bands), *lines]
    scale: YScale = "symlog" if symlog else "linear"
    return Panel(
        about, "round", "", marks, shown, title=title, size=SMALL, x_scale="rounds", y_scale=scale, curves=curves
    )
