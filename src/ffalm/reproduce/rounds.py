"""What a run would be if its best round were kept: the paper does not say which round its tables report.

The released code reports the last round, and so do our tables unless `--round best` is given. Under severe skew a run
goes up and down from round to round, so whoever keeps the round that is most accurate on the validation part reports a
better one.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ffalm.outcome import Outcome, Record, StudyOutcome, validation_accuracy
from ffalm.report.tables import HEADS
from ffalm.reproduce.frontier import mean_metrics, shown
from ffalm.reproduce.paper import METRICS, data_title
from ffalm.reproduce.sheets import Cell, Section, Sheet


@dataclass(frozen=True)
class Kept:
    """One algorithm on one data set: means over seeds of the validation metrics in the last and in the best round."""

    data: str
    label: str
    last: dict[str, float]
    best: dict[str, float]
    rounds: list[int]  # the best round of each seed
    seeds: int


def kept(studies: Mapping[str, StudyOutcome]) -> list[Kept]:
    """Every algorithm of every data set whose finished runs were measured as they went."""
    found = []
    for data, study in studies.items():
        for label in study.labels():
            runs = [one for one in study.outcomes if one.label == label and one.diverged is None]
            tops = [top for run in runs if (top := best_round(run)) is not None]
            if tops and len(tops) == len(runs):
                ends = [run.history[-1] for run in runs]
                best = [int(top["round"]) for top in tops]
                found.append(Kept(data, label, mean_metrics(ends), mean_metrics(tops), best, len(runs)))
    return found


def best_round(run: Outcome) -> Record | None:
    """The earliest round of the highest validation accuracy; None where no round was measured."""
    best = max(run.history, key=validation_accuracy, default=None)
    return best if best is not None and math.isfinite(validation_accuracy(best)) else None


def sheet(rows: Sequence[Kept], title: str) -> Sheet:
    """Last and best side by side, a section for every data set."""
    sections = [
        Section(data_title(data), [_row(one) for one in rows if one.data == data])
        for data in dict.fromkeys(one.data for one in rows)
    ]
    spans = [("", 1), *((HEADS[metric], 2) for metric in METRICS), ("", 1)]
    heads = ["Algorithm", *["last", "best"] * len(METRICS), "Best rounds"]
    return Sheet(title, heads, sections, spans=spans)


def to_csv(rows: Sequence[Kept]) -> str:
    """One line for every algorithm and metric, in percent, unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["data", "algorithm", "seeds", "metric", "last", "best"])
    for one in rows:
        for metric in METRICS:
            figures = (_percent(one.last[metric]), _percent(one.best[metric]))
            writer.writerow([one.data, one.label, one.seeds, metric, *figures])
    return text.getvalue()


def plain(one: Kept) -> dict[str, Any]:
    """The same for machines, in percent as everywhere in this experiment."""
    sides = {name: {metric: _percent(side[metric]) for metric in METRICS} for name, side in _sides(one).items()}
    return {"data": one.data, "label": one.label, **sides, "rounds": one.rounds, "seeds": one.seeds}


def _sides(one: Kept) -> dict[str, dict[str, float]]:
    return {"last": one.last, "best": one.best}


def _percent(value: float) -> float | None:
    """None where it was not measured."""
    return 100 * value if math.isfinite(value) else None


def _row(one: Kept) -> list[Cell]:
    pairs = [Cell(shown(side[metric])) for metric in METRICS for side in _sides(one).values()]
    return [Cell(one.label), *pairs, Cell(f"{min(one.rounds)} to {max(one.rounds)}")]
