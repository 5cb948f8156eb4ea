"""Makers of runs and studies with numbers small enough to work out by hand."""

from __future__ import annotations

import math
from typing import Any

from ffalm.outcome import Outcome, Record, StudyOutcome


def run(
    label: str,
    seed: int = 0,
    accuracy: float = math.nan,
    dpd: float = math.nan,
    eod: float = math.nan,
    others: dict[str, float] | None = None,
    **more: Any,
) -> Outcome:
    """One run; `others` are test metrics beyond the three of the paper."""
    given: dict[str, Any] = {
        "algorithm": label.split(maxsplit=1)[0].lower(),
        "alpha": 0.3,
        "intervals": {},
        "history": [],
        "seconds": 1.0,
    }
    test = {"accuracy": accuracy, "dpd": dpd, "eod": eod, **(others or {})}
    return Outcome(label=label, seed=seed, test=test, **(given | more))


def study(*outcomes: Outcome, **more: Any) -> StudyOutcome:
    """A study of these runs, about incomes unless told otherwise."""
    given: dict[str, Any] = {
        "title": "Incomes",
        "task": {"data": "census", "label": "income", "favourable": ">50K", "groups": "Female, Male"},
        "choices": {"rounds": "70", "batch size": "128"},
        "clients": [],
        "runs": [],
    }
    return StudyOutcome(outcomes=list(outcomes), **(given | more))


def records(*values: Any, name: str = "accuracy") -> list[Record]:
    """A history of one metric or state entry from round 1 on."""
    return [{"round": number, name: value} for number, value in enumerate(values, start=1)]
