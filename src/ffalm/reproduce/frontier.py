"""Which settings of FFALM trade accuracy for fairness best, judged on validation rows alone.

Several schedules run beside the paper's baselines on every data set at its severest skew. A run is judged by the mean
of its last rounds on the validation part; the test part is not used, so that it can evaluate what is chosen here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ffalm.outcome import HEADLINE, Outcome, Record, StudyOutcome
from ffalm.report.fronts import dominates
from ffalm.report.summary import HEADS
from ffalm.report.tables import Cell, Column, Row, Section, Table, percent, row
from ffalm.reproduce.paper import METRICS, data_title
from ffalm.reproduce.request import Entry

ALPHA = 0.3
BASELINES = ("fedavg", "fairfed", "fpfl")
AFFORDABLE = 0.01  # accuracy that fairness may cost against FedAvg
_STABLE = 0.10  # a seed that loses more than this against FedAvg's same seed has collapsed
_LAST = 5  # rounds whose mean judges a run: a single round's EOD is mostly chance


@dataclass(frozen=True)
class Candidate:
    """Settings of FFALM that are tried, and the family that a figure colours them by."""

    settings: dict[str, Any]
    family: str


def _released(**settings: Any) -> Candidate:
    return Candidate({"preset": "released-code", **settings}, "FFALM, released-code")


def _gentle(**settings: Any) -> Candidate:
    growing = "growing" if "penalty_growth" in settings else "constant"
    return Candidate({"preset": "safe", **settings}, f"FFALM, bounded, {growing} penalty")


_BOUND = {"dual_bound": 0.25}
#: What is tried, by the name under which tables show it: the presets, stronger and gentler settings.
CANDIDATES = {
    "FFALM, paper": Candidate({"preset": "paper"}, "FFALM, paper"),
    "FFALM, paper, dual within 1": Candidate({"preset": "paper", "dual_bound": 1.0}, "FFALM, paper"),
    "FFALM, released-code": _released(),
    "FFALM, released-code, all rows, dual within 1": _released(dual_data="full", dual_bound=1.0),
    "FFALM, released-code, penalty 10": _released(penalty=10.0),
    "FFALM, safe": _gentle(),
    "FFALM, safe, dual within 0.25": _gentle(**_BOUND),
    **{
        f"FFALM, safe, dual within 0.25, penalty {penalty:g}": _gentle(**_BOUND, penalty=penalty)
        for penalty in (0.5, 1.0, 3.0, 5.0)
    },
    **{
        f"FFALM, safe, dual within 0.25, penalty {penalty:g} growing": _gentle(
            **_BOUND, penalty=penalty, penalty_growth=1.05
        )
        for penalty in (0.2, 0.3, 0.5)
    },
}


@dataclass(frozen=True)
class Judged:
    """One algorithm on one data set: its validation metrics over seeds, and its worst loss of accuracy on a seed."""

    data: str
    label: str
    metrics: dict[str, float]
    worst: float  # the largest loss of accuracy against FedAvg's same seed
    seeds: int
    diverged: int

    @property
    def stable(self) -> bool:
        """Whether no seed diverged or collapsed."""
        return self.diverged == 0 and self.worst <= _STABLE

    def beats(self, other: Judged) -> bool:
        """Whether it is at least as good in all three metrics and better in one."""
        return dominates(self.merits, other.merits)

    @property
    def merits(self) -> list[float]:
        """The metrics with gaps negated, so that higher is better."""
        return [self.metrics[metric] if HEADLINE[metric][1] else -self.metrics[metric] for metric in METRICS]

    def fairer_than(self, other: Judged) -> bool:
        """Whether both gaps are smaller."""
        return all(self.metrics[metric] < other.metrics[metric] for metric in ("dpd", "eod"))


def entries() -> list[Entry]:
    """The candidates as algorithms of a study; each has its own key, so that no run of a table is taken for it."""
    return [
        Entry("-".join(label.lower().replace(",", "").split()), "ffalm", label, {"name": "ffalm"} | one.settings)
        for label, one in CANDIDATES.items()
    ]


def judge(studies: Mapping[str, StudyOutcome]) -> list[Judged]:
    """Every algorithm of every data set, against its FedAvg, which comes first."""
    found = []
    for data, study in studies.items():
        runs = {label: [one for one in study.outcomes if one.label == label] for label in study.labels()}
        base = {one.seed: last_rounds(one)["accuracy"] for one in runs[study.labels()[0]]}
        found += [_judged(data, label, mine, base) for label, mine in runs.items()]
    return found


def last_rounds(run: Outcome, metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """A run's validation metrics, each the mean of its last rounds."""
    return mean_metrics(run.history[-_LAST:], metrics)


def mean_metrics(records: Sequence[Record], metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """The means of some rounds' metrics; NaN where one of them was not measured."""
    return {metric: statistics.fmean(_number(record.get(metric)) for record in records) for metric in metrics}


def chosen(judged: Sequence[Judged]) -> str | None:
    """The candidate to recommend: stable and affordable on every data set, and of those the fairest.

    Fairness is the mean over data sets of DPD and EOD, each as a share of FedAvg's. None where no candidate is both.
    """
    scores: dict[str, float] = {}
    for label in candidates(judged):
        mine = [one for one in judged if one.label == label]
        pairs = [(one.metrics, _named(judged, one.data)[0].metrics) for one in mine]
        affordable = all(base["accuracy"] - own["accuracy"] <= AFFORDABLE for own, base in pairs)
        if affordable and all(one.stable for one in mine):
            scores[label] = statistics.fmean(
                _share(own[metric], base[metric]) for own, base in pairs for metric in ("dpd", "eod")
            )
    return min(scores, key=lambda label: scores[label]) if scores else None


def _share(gap: float, base: float) -> float:
    """A gap as a share of FedAvg's, which has none where it predicts everybody alike."""
    return gap / base if base else math.inf if gap else 1.0


def candidates(judged: Sequence[Judged]) -> list[str]:
    """The labels of FFALM's settings among what was judged; all others are baselines."""
    return list(dict.fromkeys(one.label for one in judged if one.label in CANDIDATES))


def on_frontier(one: Judged, judged: Sequence[Judged]) -> bool:
    """Whether nothing stable on the same data set is better in every respect."""
    return one.stable and not any(other.stable and other.beats(one) for other in _named(judged, one.data))


def table(judged: Sequence[Judged], title: str, caption: str = "") -> Table:
    """All of them by data set; rows on the frontier are bold."""
    metrics = [Column(HEADS[metric], "percent") for metric in METRICS]
    sections = []
    for data in dict.fromkeys(one.data for one in judged):
        rows = [_row(one, on_frontier(one, judged)) for one in _named(judged, data)]
        sections.append(Section(rows, data_title(data)))
    rest = [Column("Worst seed", "percent"), Column("Stable"), Column("Seeds", "count")]
    return Table(title, [Column("Algorithm"), *metrics, *rest], sections, caption)


def findings(judged: Sequence[Judged]) -> list[str]:
    """The findings in sentences."""
    lines = [
        f"Validation part, mean of the last {_LAST} rounds, then over seeds; the test part was not used. Bold "
        "rows are on the frontier: no stable row is better in all three numbers. The worst seed is the largest loss "
        "of accuracy against FedAvg on the same seed."
    ]
    best = chosen(judged)
    if best is None:
        lines.append(
            f"No candidate is stable and at most {percent(AFFORDABLE)} points less accurate than FedAvg on every data "
            "set: there is only the frontier to choose from."
        )
        return lines
    lines.append(
        f"Of those that are stable and at most {percent(AFFORDABLE)} points less accurate than FedAvg on every data "
        f"set, {best} has the smallest gaps (mean of DPD and EOD as shares of FedAvg's)."
    )
    for one in (one for one in judged if one.label == best):
        others = [other for other in _named(judged, one.data) if other.label not in candidates(judged)]
        beaten = [other.label for other in others if one.fairer_than(other)]
        lines.append(
            f"On {data_title(one.data)} it is fairer in both than {', '.join(beaten) or 'none of the others'}."
        )
    return lines


def tidy(judged: Sequence[Judged]) -> Table:
    """One row for every algorithm and data set, as fractions in full precision, for machines."""
    columns = ("data", "algorithm", *METRICS, "worst_loss", "stable", "frontier", "seeds", "diverged")
    rows = []
    for one in judged:
        numbers = [*(one.metrics[metric] for metric in METRICS), one.worst]
        rows.append(row(one.data, one.label, *numbers, one.stable, on_frontier(one, judged), one.seeds, one.diverged))
    return Table("", [Column(name) for name in columns], [Section(rows)])


def _judged(data: str, label: str, runs: Sequence[Outcome], base: Mapping[int, float]) -> Judged:
    scored = {run.seed: last_rounds(run) for run in runs}
    metrics = {metric: statistics.fmean(one[metric] for one in scored.values()) for metric in METRICS}
    losses = [base[seed] - one["accuracy"] for seed, one in scored.items()]
    worst = max(losses) if all(map(math.isfinite, losses)) else math.nan
    return Judged(data, label, metrics, worst, len(runs), sum(run.diverged is not None for run in runs))


def _named(judged: Sequence[Judged], data: str) -> list[Judged]:
    return [one for one in judged if one.data == data]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _row(one: Judged, frontier: bool) -> Row:
    numbers = [Cell(one.metrics[metric], bold=frontier) for metric in METRICS]
    state = "yes" if one.stable else f"no: {one.diverged} diverged" if one.diverged else "no"
    return row(Cell(one.label, bold=frontier), *numbers, one.worst, state, one.seeds)
