"""The charts of notebooks: accuracy against a fairness gap (`Study.plot`), and metrics by round (`Result.plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ffalm.outcome import Outcome, Record
from ffalm.report.chart_sheet import Picture, sheet
from ffalm.report.curves import COLOURS, Chart, Key
from ffalm.report.plots import Line, Mark, MarkKind, Plot
from ffalm.report.summary import metric_title, skew

#: With more algorithms than colours, the colours repeat with another shape.
_SHAPES: tuple[MarkKind, ...] = ("mean", "fitted", "degenerate")


def accuracy_against(metric: str, runs: Sequence[Outcome]) -> Picture:
    """Test accuracy over a test metric; runs in which either is undefined are left out."""
    labels = list(dict.fromkeys(run.label for run in runs))
    looks = {label: (_SHAPES[place // COLOURS % 3], place % COLOURS) for place, label in enumerate(labels)}
    marks = [
        Mark(run.test[metric], run.test["accuracy"], *looks[run.label], _about(run, metric))
        for run in runs
        if all(math.isfinite(run.test.get(name, math.nan)) for name in (metric, "accuracy"))
    ]
    keys = [Key(label, colour, kind=kind) for label, (kind, colour) in looks.items()]
    title = metric_title(metric)
    plot = Plot(f"Accuracy against {title}, one dot per run.", title, "Accuracy", marks, size=(560, 380))
    return Picture(sheet([Chart("scatter", f"Test accuracy against {title}", keys, [("", [plot])])]))


def _about(run: Outcome, metric: str) -> str:
    """The text under the pointer."""
    where = f"{run.label}, seed {run.seed}{skew(run.alpha, ', ')}"
    return f"{where}: accuracy {run.test['accuracy']:.4f}, {metric} {run.test[metric]:.4f}"


def by_round(history: Sequence[Record], metrics: Sequence[str]) -> Picture:
    """Metrics of a run's held-out rows over its rounds; rounds in which one is undefined are left out of its line."""
    points = [[(one["round"], one.get(metric, math.nan)) for one in history] for metric in metrics]
    lines = [
        Line([point for point in one if math.isfinite(point[1])], "curve", place) for place, one in enumerate(points)
    ]
    keys = [Key(metric_title(metric), place) for place, metric in enumerate(metrics)]
    about = f"{', '.join(map(metric_title, metrics))} by round."
    plot = Plot(about, "Round", "", (), lines, size=(560, 380), x_scale="rounds")
    return Picture(sheet([Chart("rounds", "Held-out rows by round", keys, [("", [plot])])]))
