"""Figure 2: validation accuracy, DPD and EOD by round, a block a data set, with bands over the seeds."""

from __future__ import annotations

from typing import Any

from ffalm.outcome import StudyOutcome


def specification(studies: dict[str, StudyOutcome]) -> dict[str, Any] | None:
    """The blocks of all data sets in one Vega-Lite chart; None where no run has a history."""
    from ffalm.report.curves import PAPER, metric_chart

    charts = {title: chart.to_dict() for title, study in studies.items() if (chart := metric_chart(study)) is not None}
    if not charts:
        return None
    shared = ("config", "datasets", "$schema")
    blocks = [
        {**{key: value for key, value in chart.items() if key not in shared}, "title": title}
        for title, chart in charts.items()
    ]
    datasets = {name: data for chart in charts.values() for name, data in chart.get("datasets", {}).items()}
    return {"config": PAPER, "datasets": datasets, "vconcat": blocks, "spacing": 36}
