"""A study small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
from tests.report.makers import run, study

from ffalm.outcome import Record, StudyOutcome


def _history(*accuracies: float, dual: float | None = None) -> list[Record]:
    steady = {"dpd": 0.2, "eod": 0.1, "seconds": 0.1}
    return [
        {"round": number, "accuracy": accuracy, **steady, **({} if dual is None else {"dual": dual * number})}
        for number, accuracy in enumerate(accuracies, start=1)
    ]


@pytest.fixture
def compared() -> StudyOutcome:
    """Two algorithms, two seeds, three rounds; one FFALM run diverged after the second."""
    return study(
        run("FedAvg", 0, 0.80, 0.20, 0.10, history=_history(0.5, 0.6, 0.7)),
        run("FedAvg", 1, 0.84, 0.24, 0.14, history=_history(0.7, 0.8, 0.9)),
        run("FFALM", 0, 0.79, 0.12, 0.11, history=_history(0.4, 0.5, 0.6, dual=0.5)),
        run("FFALM", 1, history=_history(0.6, 0.7, math.nan, dual=3.0), diverged="the loss is not finite at round 3"),
        clients=[{"client": 0, "rows": 30, ">50K": 0.25}, {"client": 1, "rows": 60, ">50K": 0.5}],
        notes=["Two rows were skipped."],
    )
