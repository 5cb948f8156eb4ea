"""The curves of a study: one chart definition for PNG, PDF and the page."""

from __future__ import annotations

from typing import Any

import altair as alt

from ffalm.outcome import StudyOutcome
from ffalm.report.drawing import PALETTE, PAPER
from ffalm.report.series import Point, dual_points, metric_points
from ffalm.report.summary import skew

#: Beyond seven algorithms the colours come again, dashed; several duals of one algorithm are dashed too.
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [1, 4], [3, 6], [5, 2, 1, 2, 1, 2], [4, 1])
#: Duals of more groups than this are lines alone: their bands would cover them.
MOST_BANDS = 4
#: A dual beyond this size has blown up; a linear axis would flatten every other run.
BLOWN_UP = 50.0

TITLES = {"metrics": "Validation metrics by round", "duals": "Duals by round"}
CELL_WIDTH, CELL_HEIGHT = 250, 190


def metric_chart(study: StudyOutcome) -> alt.VConcatChart | None:
    """Accuracy and gaps by round, a facet a metric and a block a skew; None without any history."""
    return _blocks(study, metric_points(study), "metric")


def dual_chart(study: StudyOutcome) -> alt.VConcatChart | None:
    """The duals by round, a facet an algorithm and a block a skew; None where no algorithm keeps one."""
    return _blocks(study, dual_points(study), "algorithm")


def specifications(study: StudyOutcome, validate: bool = False) -> dict[str, dict[str, Any]]:
    """The charts that a study has, by name, in Vega-Lite, with colours for white paper.

    Validating them against Vega-Lite's schema takes longer than drawing them: tests do it.
    """
    charts = {"metrics": metric_chart(study), "duals": dual_chart(study)}
    made = {name: chart.to_dict(validate=validate) for name, chart in charts.items() if chart is not None}
    return {name: {**chart, "config": PAPER} for name, chart in made.items()}


def stacked(charts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Charts below one another under their titles, for PNG and PDF; data and colours belong to the whole."""
    shared = ("config", "datasets", "$schema")
    parts = [
        {**{key: value for key, value in chart.items() if key not in shared}, "title": title}
        for title, chart in charts.items()
    ]
    datasets = {key: data for chart in charts.values() for key, data in chart.get("datasets", {}).items()}
    return {"config": PAPER, "datasets": datasets, "vconcat": parts, "spacing": 36}


def interactive(still: dict[str, Any]) -> dict[str, Any]:
    """The same specification with points that show their numbers under the pointer.

    They are added here and not to the chart because altair cannot place a layer's parameter inside several
    blocks of facets, and because PNG and PDF do not need them.
    """
    blocks = []
    for index, block in enumerate(still["vconcat"]):
        layer = block["spec"]["layer"]
        line = next(part for part in layer if part["mark"]["type"] == "line")
        blocks.append({**block, "spec": {**block["spec"], "layer": [*layer, _dots(line["encoding"], f"near_{index}")]}})
    return {**still, "vconcat": blocks}


def _dots(encoding: dict[str, Any], name: str) -> dict[str, Any]:
    """One point per round, with all its fields: of the nearest point Vega-Lite loses a single named text field."""
    events = {"nearest": True, "on": "pointerover", "clear": "pointerout", "fields": ["algorithm", "round"]}
    shown = {"condition": {"param": name, "empty": False, "value": 1}, "value": 0}
    return {
        "mark": {"type": "point", "filled": True, "size": 60, "tooltip": {"content": "data"}},
        "params": [{"name": name, "select": {"type": "point", **events}}],
        "encoding": {**{key: encoding[key] for key in ("x", "y", "color")}, "opacity": shown},
    }


def _blocks(study: StudyOutcome, points: list[Point], facet: str) -> alt.VConcatChart | None:
    """One block of facets for each skew that has points, titled where there are several."""
    charts = []
    for alpha in study.alphas():
        part = [point for point in points if point["alpha"] == alpha]
        values = [{key: value for key, value in point.items() if key != "alpha"} for point in part]
        if values:
            chart = _facets(study, values, facet)
            charts.append(chart.properties(title=skew(alpha)) if len(study.alphas()) > 1 else chart)
    return alt.vconcat(*charts, spacing=24) if charts else None


def _facets(study: StudyOutcome, points: list[Point], facet: str) -> Any:
    order = list(dict.fromkeys(point[facet] for point in points))
    header = alt.Header(title=None, labelFontWeight="bold", labelFontSize=12, labelAnchor="start", labelPadding=6)
    data: Any = {"values": points}
    chart = alt.layer(*_layers(study, points, facet), data=data)
    cell = chart.properties(width=CELL_WIDTH, height=CELL_HEIGHT)
    faceted = cell.facet(facet=alt.Facet(f"{facet}:N", sort=order, header=header), columns=3)
    placed = faceted.properties(bounds="flush", spacing={"row": 70, "column": 52})
    return placed.resolve_scale(y="independent").resolve_axis(x="independent")


def _layers(study: StudyOutcome, points: list[Point], facet: str) -> list[Any]:
    """A band over the range of the runs, their mean, and a cross where a run diverged."""
    labels = study.labels()
    colours = alt.Scale(domain=labels, range=_cycled(PALETTE, len(labels)))
    base = alt.Chart().encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, tickCount=5, grid=False, format="d")),
        color=alt.Color("algorithm:N", scale=colours, legend=_legend() if facet == "metric" else None),
    )
    scale, axis = _scale(points, facet), alt.Axis(tickCount=5, labelFlush=True)
    mean = alt.Y("mean:Q", title=None, scale=scale, axis=axis)
    low = alt.Y("low:Q", title=None, scale=scale, axis=axis)
    stopped = alt.Y("stopped:Q", title=None, scale=scale, axis=axis)
    line = _dashed(base.mark_line(strokeWidth=2).encode(y=mean), labels, points)
    layers: list[Any] = [line]
    crowded = len({point.get("component") for point in points}) > MOST_BANDS
    if not crowded and any(point["high"] > point["low"] for point in points):
        band = base.mark_area(opacity=0.14).encode(y=low, y2="high:Q")
        layers.insert(0, band.encode(detail="component:N") if "component" in points[0] else band)
    if any("stopped" in point for point in points):
        cross = base.mark_point(shape="cross", angle=45, size=90, filled=True, opacity=1)
        layers.append(cross.transform_filter("isValid(datum.stopped)").encode(y=stopped))
    return layers


def _dashed(line: Any, labels: list[str], points: list[Point]) -> Any:
    """The line with dashes where colour is not enough to name it."""
    dashes: dict[str, Any] = {}
    for label in labels:  # a facet each, so all of them begin with a whole line
        mine = (point for point in points if point["algorithm"] == label and "component" in point)
        own = dict.fromkeys(point["component"] for point in mine)
        dashes.update(zip(own, _cycled(DASHES, len(own)), strict=True))
    if len(dashes) > 1:
        scale = alt.Scale(domain=list(dashes), range=list(dashes.values()))
        return line.encode(strokeDash=alt.StrokeDash("component:N", scale=scale, legend=_legend()))
    if len(labels) > len(PALETTE):
        again = [DASHES[index // len(PALETTE) % len(DASHES)] for index in range(len(labels))]
        scale = alt.Scale(domain=labels, range=again)
        return line.encode(strokeDash=alt.StrokeDash("algorithm:N", scale=scale, legend=_legend()))
    return line


def _scale(points: list[Point], facet: str) -> alt.Scale:
    ends = [abs(point[end]) for point in points for end in ("low", "high")]
    if facet == "algorithm" and max(ends) > BLOWN_UP:
        return alt.Scale(type="symlog", constant=1)
    return alt.Scale(zero=False)


def _legend() -> alt.Legend:
    return alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, columns=6, labelLimit=320)


def _cycled(items: Any, count: int) -> list[Any]:
    return [items[index % len(items)] for index in range(count)]
