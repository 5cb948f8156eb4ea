"""The two charts of the theory, in Vega-Lite, in the style of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import altair as alt
import numpy as np

from ffalm.report.drawing import PALETTE, PAPER
from ffalm.theory import two_clients
from ffalm.theory.numeric import Array
from ffalm.theory.trajectories import Path

if TYPE_CHECKING:
    from ffalm.theory.convergence import Curve

_WIDTH = 380
_RUNS = ("settings that give the printed limit", "steps capped as the proof requires")


def example_chart(published: Path, lawful: Path, duals: Mapping[int, float]) -> dict[str, Any]:
    """The primal risk, the game's landscape under it with two runs, and the runs' models by round."""
    runs = dict(zip(_RUNS, (published, lawful), strict=True))
    points = [
        {"run": name, "round": number, "model": model, "dual": duals[number]}
        for name, path in runs.items()
        for number, model in zip(path.rounds, path.models, strict=True)
        if number in duals
    ]
    left = alt.vconcat(_primal_risk(), _landscape(points), spacing=14)
    chart = alt.hconcat(left, _by_round(points), spacing=50).resolve_scale(color="independent")
    return {**chart.to_dict(), "config": PAPER}


def _primal_risk() -> Any:
    models = np.linspace(*two_clients.MODELS, 241)
    values = [
        {"model": float(model), "risk": float(risk)}
        for model, risk in zip(models, two_clients.primal_risk(models), strict=True)
    ]
    best, other = two_clients.saddles()
    x = alt.X("model:Q", title=None, scale=alt.Scale(domain=list(two_clients.MODELS)), axis=alt.Axis(labels=False))
    y = alt.Y("risk:Q", title="R(w)", scale=alt.Scale(domain=[-13.6, -12.4]), axis=alt.Axis(tickCount=4))
    layers = [alt.Chart(_data(values)).mark_line(color="#444444", clip=True).encode(x=x, y=y)]
    sides: tuple[tuple[two_clients.Stationary, str, Literal["left", "right"], int], ...] = (
        (best, "better", "left", 10),
        (other, "worse", "right", -10),
    )
    for saddle, name, align, shift in sides:
        label = f"{name} saddle, {saddle.value:.4f}"
        mark = alt.Chart(_data([{"model": saddle.model, "risk": saddle.value, "label": label}])).encode(x=x, y=y)
        layers.append(_diamond(mark))
        layers.append(mark.mark_text(align=align, dx=shift, dy=11, fontSize=11).encode(text="label:N"))
    title = "Risk at the best dual, R(w) = max F(w, dual)"
    return alt.layer(*layers).properties(width=_WIDTH, height=110, title=title)


def _landscape(points: list[dict[str, Any]]) -> Any:
    x: dict[str, Any] = {"scale": alt.Scale(domain=list(two_clients.MODELS)), "title": "model w"}
    y: dict[str, Any] = {"scale": alt.Scale(domain=list(two_clients.DUALS)), "title": "dual"}
    shades = alt.Color(
        "risk:Q",
        scale=alt.Scale(range=["#b8b8b8", "#ffffff"], domain=[-41, 0]),
        legend=alt.Legend(title="F(w, dual)", orient="bottom", gradientLength=_WIDTH, gradientThickness=8),
    )
    ground = alt.Chart(_data(_cells())).mark_rect(clip=True)
    heat = ground.encode(x=alt.X("left:Q", **x), x2="right:Q", y=alt.Y("low:Q", **y), y2="high:Q", color=shades)
    path = alt.Chart(_data(points)).encode(x=alt.X("model:Q", **x), y=alt.Y("dual:Q", **y), color=_colour(legend=False))
    lines = path.mark_line(strokeWidth=1, opacity=0.6, clip=True).encode(order="round:Q")
    dots = path.mark_point(filled=True, size=26, opacity=1)
    saddles = [{"model": point.model, "dual": two_clients.BEST_DUAL} for point in two_clients.saddles()]
    ends = alt.Chart(_data(saddles)).encode(x=alt.X("model:Q", **x), y=alt.Y("dual:Q", **y))
    layered = alt.layer(heat, lines, dots, _diamond(ends)).resolve_scale(color="independent")
    return layered.properties(width=_WIDTH, height=250, title="The landscape and both runs from (2, 2)")


def _cells() -> list[dict[str, float]]:
    """The landscape in rectangles that overlap a little, or a renderer would show the seams."""
    models, duals = np.linspace(*two_clients.MODELS, 61), np.linspace(*two_clients.DUALS, 51)
    width, height = 0.55 * (models[1] - models[0]), 0.55 * (duals[1] - duals[0])
    risks = two_clients.risk(models[:, None], duals[None, :])
    return [
        {
            "left": round(float(model - width), 4),
            "right": round(float(model + width), 4),
            "low": round(float(dual - height), 4),
            "high": round(float(dual + height), 4),
            "risk": round(float(risks[row, column]), 3),
        }
        for row, model in enumerate(models)
        for column, dual in enumerate(duals)
    ]


def _by_round(points: list[dict[str, Any]]) -> Any:
    axis = alt.Axis(values=[10**power for power in range(7)], grid=False, format="~s")
    x = alt.X("round:Q", title="round t", scale=alt.Scale(type="log"), axis=axis)
    y = alt.Y("model:Q", title="model w", scale=alt.Scale(domain=list(two_clients.MODELS)), axis=alt.Axis(grid=False))
    path = alt.Chart(_data([point for point in points if point["round"] > 0])).encode(x=x, y=y, color=_colour())
    lines, dots = path.mark_line(strokeWidth=1.5), path.mark_point(filled=True, size=22, opacity=1)
    worse, barrier, better = two_clients.stationary()
    names = {"worse saddle": worse, "barrier": barrier, "better saddle": better}
    levels = [{"model": point.model, "label": name, "round": 10**6} for name, point in names.items()]
    rules = alt.Chart(_data(levels)).mark_rule(color="#777777", strokeDash=[4, 4]).encode(y=y)
    texts = alt.Chart(_data(levels)).mark_text(align="right", dy=-9, fontSize=11).encode(x=x, y=y, text="label:N")
    title = "The model by round: the first fifty decide"
    return alt.layer(rules, lines, dots, texts).properties(width=_WIDTH, height=420, title=title)


def _colour(legend: bool = True) -> Any:
    return alt.Color(
        "run:N",
        scale=alt.Scale(domain=list(_RUNS), range=[PALETTE[1], PALETTE[0]]),
        legend=_strokes("bottom-right") if legend else None,
    )


def _strokes(orient: Literal["bottom-left", "bottom-right"]) -> Any:
    """A legend in a corner of its chart, which leaves the sheet's layout alone."""
    return alt.Legend(
        title=None, orient=orient, symbolType="stroke", symbolStrokeWidth=3, labelLimit=300, fillColor="white"
    )


def _diamond(chart: Any) -> Any:
    return chart.mark_point(filled=True, shape="diamond", size=80, color="black", opacity=1)


def rate_chart(curves: Sequence[Curve]) -> dict[str, Any]:
    """The gap and the dual's squared error against the number of rounds, with the powers they are held to."""
    names = [_name(curve) for curve in curves]
    gaps = [_points(name, curve.rounds, curve.gaps) for name, curve in zip(names, curves, strict=True)]
    errors = [_points(name, curve.rounds, curve.dual_errors) for name, curve in zip(names, curves, strict=True)]
    powers = {"T^(-2/3)": -2 / 3, "1/T": -1.0}
    left = _power_panel(gaps, names, powers, "Gap of the primal risk, R(w) - R*")
    right = _power_panel(errors, names, {"T^(-2/3)": -2 / 3}, "Squared distance of the dual from the best one")
    return {**alt.hconcat(left, right, spacing=40).to_dict(), "config": PAPER}


def _name(curve: Curve) -> str:
    level = f"heterogeneity {curve.problem.level:g}"
    return level if curve.local_steps == 1 else f"{level}, E = {curve.local_steps}"


def _points(name: str, rounds: list[int], values: Array) -> list[dict[str, Any]]:
    """The mean over seeds with twice its standard error to either side."""
    means, errors = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
    return [
        {"curve": name, "round": number, "mean": float(mean), "low": float(mean - band), "high": float(mean + band)}
        for number, mean, band in zip(rounds, means, np.minimum(2 * errors, 0.9 * means), strict=True)
    ]


def _power_panel(curves: list[list[dict[str, Any]]], names: list[str], powers: dict[str, float], title: str) -> Any:
    last = curves[0][-1]["round"]
    tens = [10.0**power for power in range(-9, 9)]
    domain = alt.Scale(type="log", domain=[1, 6 * last], nice=False)
    x = alt.X("round:Q", title="rounds T", scale=domain, axis=alt.Axis(values=tens, grid=False, format="~s"))
    scale, axis = alt.Scale(type="log"), alt.Axis(values=tens, format="~e")
    y = alt.Y("mean:Q", title=None, scale=scale, axis=axis)
    colours = alt.Scale(domain=names, range=list(PALETTE[: len(names)]))
    points = [point for curve in curves for point in curve]
    base = alt.Chart(_data(points)).encode(
        x=x, color=alt.Color("curve:N", scale=colours, legend=_strokes("bottom-left"))
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=None, scale=scale, axis=axis), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y)
    guides = [_guide(curves[0], power, label) for label, power in powers.items()]
    ground = alt.Chart(_data([point for guide in guides for point in guide]))
    rules = ground.mark_line(strokeDash=[5, 4], color="#555555").encode(x=x, y=y, detail="label:N")
    ends = alt.Chart(_data([guide[-1] for guide in guides]))
    texts = ends.mark_text(align="left", dx=5, fontSize=12, color="#333333").encode(x=x, y=y, text="label:N")
    return alt.layer(band, line, rules, texts).properties(width=_WIDTH, height=300, title=title)


def _guide(curve: list[dict[str, Any]], power: float, label: str) -> list[dict[str, Any]]:
    """A straight line of a given power above the curve, from where the steps have begun to fall."""
    first, last = next(point for point in curve if point["round"] >= min(200, curve[-1]["round"])), curve[-1]
    return [
        {"label": label, "round": number, "mean": 3 * first["mean"] * (number / first["round"]) ** power}
        for number in (first["round"], last["round"])
    ]


def _data(values: list[dict[str, Any]]) -> Any:
    return {"values": values}
