"""The frontier as a figure: accuracy against each gap, with the region in which the paper's claim would hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ffalm.report.drawing import PALETTE, PAPER
from ffalm.report.summary import HEADS
from ffalm.report.tables import percent
from ffalm.reproduce.frontier import AFFORDABLE, CANDIDATES, Judged, candidates, on_frontier
from ffalm.reproduce.paper import METRICS, data_title

_SIDE = 300
_SHOWN = 0.2  # the loss of accuracy against FedAvg that the panels reach down to
_FRONTIER, _BEATEN, _UNSTABLE = "on the frontier", "beaten by another", "not stable"
_SHAPES = {_FRONTIER: "circle", _BEATEN: "triangle-down", _UNSTABLE: "cross"}


def specification(judged: Sequence[Judged]) -> dict[str, Any] | None:
    """A row a data set, a panel a gap, in Vega-Lite; None where FedAvg itself has no numbers to compare with."""
    rows = []
    for data in dict.fromkeys(one.data for one in judged):
        mine = [one for one in judged if one.data == data]
        if _complete(mine[0]):
            panels = [_panel(mine, gap) for gap in METRICS if gap != "accuracy"]
            rows.append({"title": data_title(data), "hconcat": panels, "spacing": 40})
    return {"config": PAPER, "vconcat": rows, "spacing": 36} if rows else None


def family(one: Judged) -> str:
    """The family of settings by which a point is coloured; a baseline is its own."""
    return CANDIDATES[one.label].family if one.label in CANDIDATES else one.label


def left_out(judged: Sequence[Judged]) -> list[str]:
    """What the figure does not show, in sentences: a collapsed run would compress the scale of all others."""
    return [
        f"Not in the figure: {one.label} on {data_title(one.data)}, far below at {percent(one.metrics['accuracy'])} %."
        for one in judged
        if _far_below(one, [other for other in judged if other.data == one.data])
    ]


def _far_below(one: Judged, judged: Sequence[Judged]) -> bool:
    return one.metrics["accuracy"] < judged[0].metrics["accuracy"] - _SHOWN


def _complete(one: Judged) -> bool:
    return all(math.isfinite(value) for value in one.metrics.values())


def _panel(judged: Sequence[Judged], gap: str) -> dict[str, Any]:
    """Points by gap and accuracy, and the corner to their upper left that would be a success."""
    families = list(dict.fromkeys(family(one) for one in judged))
    fedavg = judged[0].metrics["accuracy"]
    ours = candidates(judged)
    best = min((one.metrics[gap] for one in judged if one.stable and one.label not in ours), default=0.0)
    shown = [one for one in judged if _complete(one) and not _far_below(one, judged)]
    heights = [100 * one.metrics["accuracy"] for one in shown]
    lowest, highest = min(heights) - 1, max(heights) + 1
    scale = {"domain": [lowest, highest], "nice": False}
    x = {"field": "gap", "type": "quantitative", "title": f"{HEADS[gap]} (points)", "scale": {"zero": True}}
    y = {"field": "accuracy", "type": "quantitative", "title": f"{HEADS['accuracy']} (%)", "scale": scale}
    legend = {"title": None, "orient": "right", "labelLimit": 0}
    colours = {"domain": families, "range": list(PALETTE[: len(families)])}
    shapes = {"domain": list(_SHAPES), "range": list(_SHAPES.values())}
    corner = {"gap": 0.0, "to": 100 * best, "accuracy": 100 * (fedavg - AFFORDABLE), "top": highest}
    return {
        "width": _SIDE,
        "height": _SIDE,
        "layer": [
            {
                "data": {"values": [corner]},
                "mark": {"type": "rect", "color": PALETTE[2], "opacity": 0.12},
                "encoding": {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "top"}},
            },
            {
                "data": {"values": [_point(one, gap, judged) for one in shown]},
                "mark": {"type": "point", "size": 90, "filled": True, "opacity": 0.85},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {"field": "family", "type": "nominal", "scale": colours, "legend": legend},
                    "shape": {"field": "state", "type": "nominal", "scale": shapes, "legend": legend},
                },
            },
        ],
    }


def _point(one: Judged, gap: str, judged: Sequence[Judged]) -> dict[str, Any]:
    state = _FRONTIER if on_frontier(one, judged) else _BEATEN if one.stable else _UNSTABLE
    numbers = {"gap": 100 * one.metrics[gap], "accuracy": 100 * one.metrics["accuracy"]}
    return {"algorithm": one.label, "family": family(one), "state": state, **numbers}
