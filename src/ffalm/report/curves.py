"""The curves of a study: one chart definition that becomes the picture, the PDF and the page's interactive chart.

Means and ranges are taken here, in plain Python, so that the chart carries a few numbers a round and no runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ffalm.outcome import HEADLINE, Outcome, Record, StudyOutcome
from ffalm.report.summary import pick
from ffalm.report.tables import skew

if TYPE_CHECKING:
    import altair as alt

Point = dict[str, Any]
"""One round of one line: what is drawn, `mean`, `low`, `high` over the `runs` that have a value."""

#: Okabe and Ito's colours, told apart with any colour vision; yellow and black are left out because they vanish on a
#: light or a dark page.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
#: Beyond seven algorithms the colours come again with another dash.
DASHES = ([1, 0], [6, 3], [2, 2])
#: More rounds than this are thinned before drawing: a line is no wider than a few hundred pixels.
MAX_POINTS = 240
#: A dual beyond this size has blown up; a linear axis would flatten every other line.
BLOWN_UP = 50.0

CELL_WIDTH, CELL_HEIGHT = 250, 190

TITLES = {
    metric: f"{name} {'↑' if up else '↓'} ({'%' if up else 'points'})"
    for metric, (name, up) in HEADLINE.items()
}


def metric_points(study: StudyOutcome) -> list[Point]:
    """Validation metrics by round in percent, for every skew, metric and algorithm."""
    points = []
    for alpha, label, runs in _lines(study):
        for metric, title in TITLES.items():
            values = _by_round(runs, lambda record, name=metric: _number(record.get(name)))  # type: ignore[misc]
            points += [
                {"alpha": alpha, "metric": title, **point} for point in _points(label, values, 100.0, 3)
            ]
    return points


def dual_points(study: StudyOutcome) -> list[Point]:
    """The server's duals by round, one line for each component that an algorithm keeps."""
    points = []
    for alpha, label, runs in _lines(study):
        width = max((len(_duals(record)) for run in runs for record in run.history), default=0)
        for index in range(width):
            values = _by_round(runs, lambda record, at=index: _at(_duals(record), at))  # type: ignore[misc]
            component = "dual" if width == 1 else f"dual {index + 1}"
            points += [
                {"alpha": alpha, "component": component, **point} for point in _points(label, values, 1.0, 5)
            ]
    return points


def metric_chart(study: StudyOutcome, interactive: bool = False) -> alt.VConcatChart | None:
    """Accuracy and gaps by round, a facet for each metric and a row for each skew; None without any history."""
    points = metric_points(study)
    return _stacked(
        study, points, lambda part: _facets(study, part, "metric", list(TITLES.values()), interactive)
    )


def dual_chart(study: StudyOutcome, interactive: bool = False) -> alt.VConcatChart | None:
    """The duals by round, a facet for each component; None where no algorithm keeps one."""
    points = dual_points(study)
    components = list(dict.fromkeys(point["component"] for point in points))
    return _stacked(
        study, points, lambda part: _facets(study, part, "component", sorted(components), interactive)
    )


def picture(study: StudyOutcome) -> alt.VConcatChart | None:
    """Everything there is to draw, for the PNG and the PDF: metrics above, duals below."""
    import altair as alt

    charts = [chart for chart in (metric_chart(study), dual_chart(study)) if chart is not None]
    return alt.vconcat(*charts, spacing=28).configure_view(stroke=None) if charts else None


def _lines(study: StudyOutcome) -> Iterable[tuple[float | None, str, list[Outcome]]]:
    for alpha in study.alphas():
        for label in study.labels():
            yield alpha, label, pick(study, alpha, label)


def _by_round(runs: list[Outcome], value: Callable[[Record], float]) -> dict[int, list[float]]:
    """The finite values of each round over the runs; a run that diverged ends where it stopped."""
    rounds: dict[int, list[float]] = {}
    for run in runs:
        for record in run.history:
            number = value(record)
            if math.isfinite(number):
                rounds.setdefault(int(record["round"]), []).append(number)
    return dict(sorted(rounds.items()))


def _points(label: str, rounds: Mapping[int, list[float]], scale: float, digits: int) -> list[Point]:
    return [
        {
            "algorithm": label,
            "round": number,
            "mean": round(scale * fmean(rounds[number]), digits),
            "low": round(scale * min(rounds[number]), digits),
            "high": round(scale * max(rounds[number]), digits),
            "runs": len(rounds[number]),
        }
        for number in _thinned(list(rounds))
    ]


def _thinned(rounds: Sequence[int]) -> list[int]:
    """At most `MAX_POINTS` rounds, evenly taken, the first and the last among them."""
    if len(rounds) <= MAX_POINTS:
        return list(rounds)
    step = (len(rounds) - 1) / (MAX_POINTS - 1)
    return [rounds[round(index * step)] for index in range(MAX_POINTS)]


def _duals(record: Record) -> list[float]:
    """The duals of a round as a flat list, whatever shape the algorithm keeps them in."""
    return list(_flat(record.get("dual", record.get("duals"))))


def _flat(value: Any) -> Iterable[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield _number(value)


def _at(values: list[float], index: int) -> float:
    return values[index] if index < len(values) else math.nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _stacked(
    study: StudyOutcome, points: list[Point], facets: Callable[[list[Point]], alt.FacetChart]
) -> alt.VConcatChart | None:
    """One row of facets for each skew that has points, titled where there are several."""
    import altair as alt

    if not points:
        return None
    several = len(study.alphas()) > 1
    charts = []
    for alpha in study.alphas():
        part = [point for point in points if point["alpha"] == alpha]
        if part:
            chart = facets([{key: value for key, value in point.items() if key != "alpha"} for point in part])
            charts.append(chart.properties(title=skew(alpha)) if several else chart)
    return alt.vconcat(*charts, spacing=24)


def _facets(
    study: StudyOutcome, points: list[Point], field: str, order: list[str], interactive: bool
) -> alt.FacetChart:
    import altair as alt

    shown = [name for name in order if any(point[field] == name for point in points)]
    header = alt.Header(
        title=None, labelFontWeight="bold", labelFontSize=12, labelAnchor="start", labelPadding=6
    )
    layers = _layers(study, points, field, interactive)
    chart = alt.layer(*layers, data=alt.Data(values=points)).properties(width=CELL_WIDTH, height=CELL_HEIGHT)
    faceted = chart.facet(facet=alt.Facet(f"{field}:N", sort=shown, header=header), columns=3)
    return faceted.resolve_scale(y="independent").resolve_axis(x="independent")


def _layers(study: StudyOutcome, points: list[Point], field: str, interactive: bool) -> list[Any]:
    """A band from the lowest to the highest run, the mean over it, and in the page a dot that follows the pointer."""
    import altair as alt

    labels = study.labels()
    colours = [PALETTE[index % len(PALETTE)] for index in range(len(labels))]
    dashes = [DASHES[index // len(PALETTE) % len(DASHES)] for index in range(len(labels))]
    legend = alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, columns=4)
    base = alt.Chart().encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, tickCount=5, grid=False, format="d")),
        color=alt.Color("algorithm:N", scale=alt.Scale(domain=labels, range=colours), legend=legend),
    )
    y = alt.Y("mean:Q", title=None, scale=_scale(points, field), axis=alt.Axis(tickCount=5))
    dash = alt.StrokeDash("algorithm:N", scale=alt.Scale(domain=labels, range=dashes), legend=legend)
    layers: list[Any] = []
    if any(point["high"] > point["low"] for point in points):
        layers.append(base.mark_area(opacity=0.14).encode(y=alt.Y("low:Q", title=None), y2="high:Q"))
    layers.append(base.mark_line(strokeWidth=2, clip=True).encode(y=y, strokeDash=dash))
    if interactive:
        layers.append(_pointer(base, y, field))
    return layers


def _pointer(base: alt.Chart, y: alt.Y, field: str) -> alt.Chart:
    import altair as alt

    near = alt.selection_point(
        name=f"near_{field}",
        nearest=True,
        on="pointerover",
        clear="pointerout",
        fields=["round", "algorithm"],
        empty=False,
    )
    tooltip = [
        alt.Tooltip("algorithm:N"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("mean:Q", format=".2f"),
        alt.Tooltip("low:Q", title="lowest run", format=".2f"),
        alt.Tooltip("high:Q", title="highest run", format=".2f"),
        alt.Tooltip("runs:Q"),
    ]
    dots = base.mark_point(filled=True, size=60).encode(
        y=y, tooltip=tooltip, opacity=alt.condition(near, alt.value(1), alt.value(0))
    )
    return dots.add_params(near)


def _scale(points: list[Point], field: str) -> alt.Scale:
    import altair as alt

    if (
        field == "component"
        and max(abs(end) for point in points for end in (point["low"], point["high"])) > BLOWN_UP
    ):
        return alt.Scale(type="symlog", constant=1)
    return alt.Scale(zero=False, nice=True)
