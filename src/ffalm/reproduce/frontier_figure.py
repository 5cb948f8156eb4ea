"""The frontier as a figure: accuracy against each gap, with the region in which the paper's claim would hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ffalm.report.curves import COLOURS, Chart, Key
from ffalm.report.plots import Line, Mark, Plot
from ffalm.report.summary import HEADS
from ffalm.report.tables import percent
from ffalm.reproduce.frontier import AFFORDABLE, CANDIDATES, Judged, candidates, on_frontier
from ffalm.reproduce.paper import METRICS, data_title

_SHOWN = 0.2  # the loss of accuracy against FedAvg that the panels reach down to
_GREEN = 2


def chart(judged: Sequence[Judged]) -> Chart | None:
    """A row per data set, a panel per gap; None where FedAvg itself has no numbers to compare with."""
    families = list(dict.fromkeys(family(one) for one in judged))
    blocks = []
    for data in dict.fromkeys(one.data for one in judged):
        mine = [one for one in judged if one.data == data]
        if _complete(mine[0]):
            panels = [_panel(mine, gap, families) for gap in METRICS if gap != "accuracy"]
            blocks.append((data_title(data), panels))
    keys = [Key(name, place % COLOURS) for place, name in enumerate(families)]
    keys += [Key("on the frontier", None, kind="mean"), Key("beaten by another", None, kind="fitted")]
    keys += [Key("not stable", None, kind="degenerate")]
    title = "Validation accuracy against each gap; the paper's claim would hold in the shaded corner"
    return Chart("frontier", title, keys, blocks) if blocks else None


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


def _panel(judged: Sequence[Judged], gap: str, families: Sequence[str]) -> Plot:
    """Points by gap and accuracy, and the corner to their upper left that would be a success."""
    ours = candidates(judged)
    best = 100 * min((one.metrics[gap] for one in judged if one.stable and one.label not in ours), default=0.0)
    enough = 100 * (judged[0].metrics["accuracy"] - AFFORDABLE)
    corner = [(0.0, enough), (best, enough), (best, math.inf), (0.0, math.inf)]
    marks = [
        Mark(
            100 * one.metrics[gap],
            100 * one.metrics["accuracy"],
            "mean" if on_frontier(one, judged) else "fitted" if one.stable else "degenerate",
            families.index(family(one)) % COLOURS,
            one.label,
        )
        for one in judged
        if _complete(one) and not _far_below(one, judged)
    ]
    titles = f"{HEADS[gap]} (points)", f"{HEADS['accuracy']} (%)"
    about = f"Accuracy against {HEADS[gap]}; the claim would hold in the shaded corner."
    return Plot(about, *titles, marks, [Line(corner, "band", _GREEN)])
