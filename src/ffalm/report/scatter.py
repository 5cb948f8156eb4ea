"""Accuracy against a fairness gap, one dot a run: the chart of `Study.plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffalm.outcome import Outcome

if TYPE_CHECKING:
    import altair as alt


def accuracy_against(metric: str, runs: Sequence[Outcome]) -> alt.Chart:
    """Test accuracy over a test metric; runs in which either is undefined are left out."""
    import altair as alt

    values = [
        {"algorithm": run.label, "alpha": run.alpha, "seed": run.seed, metric: run.test[metric],
         "accuracy": run.test["accuracy"]}
        for run in runs
        if all(math.isfinite(run.test.get(name, math.nan)) for name in (metric, "accuracy"))
    ]  # fmt: skip
    title = metric.upper() if metric in ("dpd", "eod") else metric.replace("_", " ").capitalize()
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values))
        .mark_point(filled=True, size=70, opacity=0.75)
        .encode(
            alt.X(metric, type="quantitative", title=title),
            alt.Y("accuracy", type="quantitative", title="Accuracy", scale=alt.Scale(zero=False)),
            alt.Color("algorithm", type="nominal", title=None),
            tooltip=[alt.Tooltip(name, type="nominal" if name in ("algorithm", "seed") else "quantitative")
                     for name in ("algorithm", "alpha", "seed", "accuracy", metric)],
        )
    )  # fmt: skip
    return chart
