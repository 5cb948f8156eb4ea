"""The numbers of a report: means and spreads over seeds, and changes against the baseline paired by seed.

A run that diverged has no result: it is left out of the mean and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome, degenerate
from ffalm.report.tables import Cell, Interval, best

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"

#: Column headings: the paper's abbreviation and the direction that is better.
HEADS = {
    metric: f"{'Acc.' if metric == 'accuracy' else name} {'↑' if up else '↓'}"
    for metric, (name, up) in HEADLINE.items()
}
#: What the abbreviations mean, for captions.
SPELLED_OUT = "DPD is the demographic parity difference, EOD the equal opportunity difference"

_SIGNIFICANCE = 0.05
_SAME = 1e-9  # smaller differences are rounding

#: 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T_QUANTILES = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)


@dataclass(frozen=True)
class Statistic:
    """One metric of one algorithm over its seeds, as a fraction."""

    mean: float  # NaN where no run has a value
    std: float | None  # sample standard deviation, None with fewer than two values
    interval: Interval | None  # of a single run, over the sampling of the test rows
    n: int  # runs behind the mean
    undefined: int  # finished runs without a value
    best: bool = False


@dataclass(frozen=True)
class AlgorithmSummary:
    """One algorithm at one Dirichlet skew."""

    alpha: float | None
    label: str
    runs: int
    diverged: int
    cells: dict[str, Statistic]
    degenerate: str = ""  # why its model is degenerate, so that its small gaps mean nothing; empty if it is not
    below: int = 0  # finished runs with less accuracy than the majority share

    @property
    def finished(self) -> int:
        """Runs that were not stopped for divergence."""
        return self.runs - self.diverged

    @property
    def seeds(self) -> str:
        """How many runs the means rest on."""
        return f"{self.finished} of {self.runs}" if self.diverged else str(self.runs)

    @property
    def note(self) -> str:
        """What the means leave out: runs that diverged, undefined metrics, a degenerate model."""
        parts = [f"{self.diverged} of {self.runs} diverged"] if self.diverged else []
        for metric, cell in self.cells.items():
            if cell.undefined and cell.n:
                parts.append(f"{metric_name(metric)} undefined in {cell.undefined} of {self.finished}")
        if self.degenerate:
            parts.append(f"degenerate: {self.degenerate}")
        elif self.below:
            parts.append(f"accuracy below the majority share in {self.below} of {self.finished}")
        return "; ".join(parts)

    def cell(self, metric: str) -> Cell:
        """A metric as a cell of a table."""
        statistic = self.cells[metric]
        mean = statistic.mean if self.finished else "diverged"
        return Cell(mean, statistic.std, statistic.interval, statistic.best)


@dataclass(frozen=True)
class Change:
    """The difference of an algorithm from the baseline in one metric, over the seeds that both finished."""

    alpha: float | None
    label: str
    metric: str
    mean: float  # NaN where no seed has both values
    interval: Interval | None  # 95 %, Student's t over the paired seeds; None with fewer than two, or without a spread
    n: int

    @property
    def even(self) -> bool:
        """Whether all of several seeds differ by the same amount, so that Student's t has no spread."""
        return self.interval is None and self.n > 1

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero; of equal differences, whether the sign test is below 5 %.

        That takes six seeds, 2^(1 - n) < 0.05: one row more in each of two is no evidence.
        """
        if self.even:
            return abs(self.mean) >= _SAME and 0.5 ** (self.n - 1) < _SIGNIFICANCE
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]


def metric_names(study: StudyOutcome) -> list[str]:
    """Every test metric that some run has: those of the paper first, then the others as they come."""
    others = dict.fromkeys(name for outcome in study.outcomes for name in outcome.test)
    return [*HEADLINE, *(name for name in others if name not in HEADLINE)]


def more_is_better(metric: str) -> bool:
    """Whether a higher value is better: of accuracies and ratios; the rest are gaps or losses."""
    return metric.endswith(("accuracy", "ratio"))


def metric_name(metric: str) -> str:
    """The name of a metric for readers."""
    return HEADLINE[metric][0] if metric in HEADLINE else metric.replace("_", " ")


def metric_title(metric: str) -> str:
    """The name of a metric within a sentence."""
    return "accuracy" if metric == "accuracy" else metric_name(metric)


def skew(alpha: float | None, before: str = "") -> str:
    """A Dirichlet skew in words; for a partition without one, empty after `before`."""
    if alpha is None:
        return "" if before else "no Dirichlet skew"
    return f"{before}{ALPHA} = {alpha:g}"


def summarise(study: StudyOutcome, metrics: list[str] | None = None) -> list[AlgorithmSummary]:
    """One row for every skew and algorithm, in the order given, with the best of each skew marked."""
    metrics = list(HEADLINE) if metrics is None else metrics
    rows: list[AlgorithmSummary] = []
    for alpha in study.alphas():
        group = [_row(alpha, label, runs, metrics) for label in study.labels() if (runs := pick(study, alpha, label))]
        rows += _marked(group, metrics)
    return rows


def pick(study: StudyOutcome, alpha: float | None, label: str) -> list[Outcome]:
    """The runs of one algorithm at one skew."""
    return [outcome for outcome in study.outcomes if outcome.alpha == alpha and outcome.label == label]


def baseline_label(study: StudyOutcome) -> str | None:
    """The baseline: FedAvg if it was run, else the first algorithm."""
    plain = [outcome.label for outcome in study.outcomes if outcome.algorithm == "fedavg"]
    return next(iter(plain + study.labels()), None)


def changes(study: StudyOutcome) -> list[Change]:
    """Every other algorithm against the baseline, seed by seed.

    Both saw the same clients, so the pairing removes the variance that comes from the partition.
    """
    baseline = baseline_label(study)
    differences: list[Change] = []
    for alpha in study.alphas():
        reference = {outcome.seed: outcome for outcome in pick(study, alpha, baseline or "")}
        for label in study.labels():
            if label == baseline or not reference:
                continue
            runs = pick(study, alpha, label)
            differences += [_change(alpha, label, metric, runs, reference) for metric in HEADLINE if runs]
    return differences


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t.

    Tabulated up to 30 degrees of freedom; beyond, the expansion about the normal quantile is as good.
    """
    if degrees <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def t_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of a mean, Student's t; None with fewer than two values, or if they are all the same."""
    if len(values) < 2 or stdev(values) < _SAME:
        return None
    mean, margin = fmean(values), t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - margin, mean + margin


def _row(alpha: float | None, label: str, runs: list[Outcome], metrics: list[str]) -> AlgorithmSummary:
    finished = [outcome for outcome in runs if outcome.diverged is None]
    cells = {metric: _cell(finished, metric) for metric in metrics}
    below = sum(run.flaws.below_majority for run in finished)
    return AlgorithmSummary(alpha, label, len(runs), len(runs) - len(finished), cells, degenerate(finished), below)


def _cell(finished: list[Outcome], metric: str) -> Statistic:
    defined = [outcome for outcome in finished if math.isfinite(outcome.test.get(metric, math.nan))]
    values = [outcome.test[metric] for outcome in defined]
    return Statistic(
        mean=fmean(values) if values else math.nan,
        std=stdev(values) if len(values) > 1 else None,
        interval=_finite(defined[0].intervals.get(metric)) if len(values) == 1 else None,
        n=len(values),
        undefined=len(finished) - len(values),
    )


def _finite(interval: Interval | None) -> Interval | None:
    if interval is None or not all(math.isfinite(end) for end in interval):
        return None
    return (interval[0], interval[1])


def _marked(rows: list[AlgorithmSummary], metrics: list[str]) -> list[AlgorithmSummary]:
    """The rows with the best mean of each metric marked; degenerate models are never best."""
    excluded = [bool(row.degenerate) for row in rows]
    for metric in metrics:
        marks = best([row.cells[metric].mean for row in rows], more_is_better(metric), excluded)
        rows = [
            replace(row, cells={**row.cells, metric: replace(row.cells[metric], best=mark)})
            for row, mark in zip(rows, marks, strict=True)
        ]
    return rows


def _change(alpha: float | None, label: str, metric: str, runs: list[Outcome], reference: dict[int, Outcome]) -> Change:
    pairs = [(run, reference[run.seed]) for run in runs if run.seed in reference]
    differences = [
        run.test.get(metric, math.nan) - other.test.get(metric, math.nan)
        for run, other in pairs
        if run.diverged is None and other.diverged is None
    ]
    values = [value for value in differences if math.isfinite(value)]
    if not values:
        return Change(alpha, label, metric, math.nan, None, 0)
    return Change(alpha, label, metric, fmean(values), t_interval(values), len(values))
