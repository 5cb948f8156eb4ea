"""The two charts of the theory, in the style of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffalm.report.chart_sheet import sheet
from ffalm.report.curves import Chart, Key
from ffalm.report.plots import Line, Mark, Place, Plot
from ffalm.theory import two_clients
from ffalm.theory.numeric import Array
from ffalm.theory.trajectories import Path

if TYPE_CHECKING:
    from ffalm.theory.convergence import Curve

_PUBLISHED, _LAWFUL = Key("settings that give the printed limit", 1), Key("steps capped as the proof requires", 0)
_GREY = 6
_LEVELS = range(-40, 0, 3)


def example_chart(published: Path, lawful: Path, duals: Mapping[int, float]) -> str:
    """The primal risk, the game's landscape with two runs, and the runs' models by round."""
    runs = {_PUBLISHED: published, _LAWFUL: lawful}
    keys = [*runs, Key("saddle point", _GREY, kind="fitted")]
    panels = [_primal_risk(), _landscape(runs, duals), _by_round(runs)]
    return sheet([Chart("example", "The paper's example of two clients", keys, [("", panels)])])


def _primal_risk() -> Plot:
    models, (better, worse) = np.linspace(-1.2, 1.2, 241), two_clients.saddles()
    curve = Line(_points(models, two_clients.primal_risk(models)), "curve", _GREY)
    marks = [Mark(saddle.model, saddle.value, "fitted", _GREY) for saddle in (worse, better)]
    title = "Risk at the best dual, R(w) = max F(w, dual)"
    below = f"model w; R = {worse.value:.4f} at the worse saddle, {better.value:.4f} at the better"
    return Plot(title, below, "R(w)", marks, [curve], title=title, x_scale="linear")


def _landscape(runs: Mapping[Key, Path], duals: Mapping[int, float]) -> Plot:
    """Both runs over the lines on which F is constant: as F(w, dual) = R(w) - dual^2, their duals are +-sqrt(R - F)."""
    models = np.linspace(*two_clients.MODELS, 961)
    risks = two_clients.primal_risk(models)
    lines = []
    for level in _LEVELS:
        inside = (risks >= level) & (risks - level <= two_clients.DUALS[1] ** 2)
        for part in np.split(np.arange(len(models)), np.flatnonzero(np.diff(inside)) + 1):
            if inside[part[0]]:
                duals_there = np.sqrt(risks[part] - level)
                lines += [Line(_points(models[part], sign * duals_there), "guide") for sign in (-1, 1)]
    marks = []
    for key, path in runs.items():
        places = [(w, duals[number]) for number, w in zip(path.rounds, path.models, strict=True) if number in duals]
        lines.append(Line(places, "series", key.colour or 0))
        marks += [Mark(*place, "seed", key.colour or 0) for place in places]
    marks += [Mark(one.model, two_clients.BEST_DUAL, "fitted", _GREY) for one in two_clients.saddles()]
    title = "Both runs from (2, 2) over levels of F, 3 apart"
    return Plot(title, "model w", "dual", marks, lines, title=title, x_scale="linear")


def _by_round(runs: Mapping[Key, Path]) -> Plot:
    lines = []
    names = ("worse saddle", "barrier", "better saddle")
    last = max(path.rounds[-1] for path in runs.values())
    for name, point in zip(names, two_clients.stationary(), strict=True):
        lines.append(Line([(1, point.model), (last, point.model)], "guide", label=name, dash="4 4"))
    for key, path in runs.items():
        places = [(number, model) for number, model in zip(path.rounds, path.models, strict=True) if number > 0]
        lines.append(Line(places, "curve", key.colour or 0))
    title = "The model by round: the first fifty decide"
    return Plot(title, "round t", "model w", [], lines, title=title, x_scale="log")


def rate_chart(curves: Sequence[Curve]) -> str:
    """The gap and the dual's squared error against the number of rounds, with the powers they are held to."""
    slow, fast = Key("falls as T^(-2/3)", None, "5 4"), Key("falls as 1/T", None, "2 3")
    keys = [*(Key(_name(curve), colour) for colour, curve in enumerate(curves)), slow, fast]
    rounds, powers = np.array(curves[0].rounds), {slow: -2 / 3, fast: -1.0}
    gaps = _power_panel(rounds, [curve.gaps for curve in curves], powers, "Gap of the primal risk, R(w) - R*")
    errors = [curve.dual_errors for curve in curves]
    right = _power_panel(rounds, errors, {slow: -2 / 3}, "Squared distance of the dual from the best one")
    title = "Means over seeds, with twice their standard error"
    return sheet([Chart("rate", title, keys, [("", [gaps, right])])])


def _name(curve: Curve) -> str:
    level = f"heterogeneity {curve.problem.level:g}"
    return level if curve.local_steps == 1 else f"{level}, E = {curve.local_steps}"


def _power_panel(rounds: Array, curves: Sequence[Array], powers: Mapping[Key, float], title: str) -> Plot:
    """Mean over seeds with twice its standard error to either side, and straight lines of given powers above."""
    bands, lines = [], []
    for colour, values in enumerate(curves):
        means, errors = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
        half = np.minimum(2 * errors, 0.9 * means)
        upper, lower = _points(rounds, means + half), _points(rounds, means - half)
        bands.append(Line([*upper, *lower[::-1]], "band", colour))
        lines.append(Line(_points(rounds, means), "curve", colour))
    first = next(place for place in lines[0].points if place[0] >= min(200, rounds[-1]))
    for key, power in powers.items():  # from where the steps have begun to fall
        guide = [(x, 3 * first[1] * (x / first[0]) ** power) for x in (first[0], float(rounds[-1]))]
        lines.append(Line(guide, "guide", dash=key.dash))
    return Plot(title, "rounds T", "", [], [*bands, *lines], title=title, size=(480, 340), x_scale="log", y_scale="log")


def _points(x: Array, y: Array) -> list[Place]:
    return list(zip(x.tolist(), y.tolist(), strict=True))
