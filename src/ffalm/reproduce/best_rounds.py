"""The last round next to the best one: the paper does not say which of them its tables report.

The released code reports the last round, and so do our tables unless `--round best` is given. Under severe skew the
metrics oscillate from round to round, so that the round with the highest validation accuracy looks better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ffalm.outcome import Outcome, Record, StudyOutcome, validation_accuracy
from ffalm.report.summary import HEADS
from ffalm.report.tables import Column, Row, Section, Table, row
from ffalm.reproduce.frontier import mean_metrics
from ffalm.reproduce.paper import METRICS, data_title


@dataclass(frozen=True)
class LastAndBest:
    """One algorithm on one data set: means over seeds of the validation metrics in the last and in the best round."""

    data: str
    label: str
    last: dict[str, float]
    best: dict[str, float]
    rounds: list[int]  # the best round of each seed
    seeds: int


def last_and_best(studies: Mapping[str, StudyOutcome]) -> list[LastAndBest]:
    """Every algorithm of every data set whose finished runs have validation metrics for each round."""
    found = []
    for data, study in studies.items():
        for label in study.labels():
            runs = [one for one in study.outcomes if one.label == label and one.diverged is None]
            tops = [top for run in runs if (top := best_round(run)) is not None]
            if tops and len(tops) == len(runs):
                ends = [run.history[-1] for run in runs]
                best = [int(top["round"]) for top in tops]
                found.append(LastAndBest(data, label, mean_metrics(ends), mean_metrics(tops), best, len(runs)))
    return found


def best_round(run: Outcome) -> Record | None:
    """The earliest round of the highest validation accuracy; None where no round was measured."""
    best = max(run.history, key=validation_accuracy, default=None)
    return best if best is not None and math.isfinite(validation_accuracy(best)) else None


def table(rows: Sequence[LastAndBest], title: str, caption: str = "") -> Table:
    """Last and best side by side, a section for every data set."""
    sides = [Column(side, "percent", over=HEADS[metric]) for metric in METRICS for side in ("last", "best")]
    sections = [
        Section([_row(one) for one in rows if one.data == data], data_title(data))
        for data in dict.fromkeys(one.data for one in rows)
    ]
    return Table(title, [Column("Algorithm"), *sides, Column("Best rounds", "count")], sections, caption)


def tidy(rows: Sequence[LastAndBest]) -> Table:
    """One row for every algorithm and metric, in percent, unrounded, for machines."""
    found = [
        row(one.data, one.label, one.seeds, metric, 100 * one.last[metric], 100 * one.best[metric])
        for one in rows
        for metric in METRICS
    ]
    columns = ("data", "algorithm", "seeds", "metric", "last", "best")
    return Table("", [Column(name) for name in columns], [Section(found)])


def record(one: LastAndBest) -> dict[str, Any]:
    """A row as plain values in percent, for JSON."""
    sides = {
        name: {metric: 100 * value if math.isfinite(value) else None for metric, value in side.items()}
        for name, side in (("last", one.last), ("best", one.best))
    }
    return {"data": one.data, "label": one.label, **sides, "rounds": one.rounds, "seeds": one.seeds}


def _row(one: LastAndBest) -> Row:
    pairs = [side[metric] for metric in METRICS for side in (one.last, one.best)]
    return row(one.label, *pairs, f"{min(one.rounds)} to {max(one.rounds)}")
