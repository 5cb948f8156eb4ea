"""The numbers of a report: means and spreads over seeds, and changes against the baseline paired by seed.

A run that diverged has no result, but it is evidence: it is left out of the mean and kept in the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome

Interval = tuple[float, float]

#: Decimals of a percentage in the tables, as in the paper; means that print alike are a tie.
DECIMALS = 2

#: 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T_QUANTILES = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)


@dataclass(frozen=True)
class Cell:
    """One metric of one algorithm over its seeds, as a fraction."""

    mean: float  # NaN where no run has a value
    std: float | None  # sample standard deviation, None with fewer than two values
    interval: Interval | None  # of a single run, over the sampling of the test rows
    n: int  # runs behind the mean
    undefined: int  # runs that finished and yet have no value
    best: bool = False


@dataclass(frozen=True)
class Row:
    """One algorithm at one skew."""

    alpha: float | None
    label: str
    runs: int
    diverged: int
    cells: dict[str, Cell]

    @property
    def finished(self) -> int:
        """Runs that were not stopped for divergence."""
        return self.runs - self.diverged


@dataclass(frozen=True)
class Change:
    """How far an algorithm lies from the baseline in one metric, over the seeds that both finished."""

    alpha: float | None
    label: str
    metric: str
    mean: float  # NaN where no seed has both values
    interval: Interval | None  # 95 %, Student's t over the paired seeds; None with fewer than two
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero, so that the seeds agree on the direction."""
        return self.interval is not None and not self.interval[0] <= 0.0 <= self.interval[1]


def metric_names(study: StudyOutcome) -> list[str]:
    """Every test metric that some run has: those of the paper first, then the others as they come."""
    others = dict.fromkeys(name for outcome in study.outcomes for name in outcome.test)
    return [*HEADLINE, *(name for name in others if name not in HEADLINE)]


def more_is_better(metric: str) -> bool:
    """Accuracies are to be high; everything else a report names is a gap or a loss."""
    return HEADLINE[metric][1] if metric in HEADLINE else "accuracy" in metric


def summarise(study: StudyOutcome, metrics: list[str] | None = None) -> list[Row]:
    """One row for every skew and algorithm, in the order given, with the best of each skew marked."""
    metrics = list(HEADLINE) if metrics is None else metrics
    rows: list[Row] = []
    for alpha in study.alphas():
        group = [_row(alpha, label, runs, metrics) for label in study.labels() if (runs := pick(study, alpha, label))]
        rows += _marked(group, metrics)
    return rows


def pick(study: StudyOutcome, alpha: float | None, label: str) -> list[Outcome]:
    """The runs of one algorithm at one skew."""
    return [outcome for outcome in study.outcomes if outcome.alpha == alpha and outcome.label == label]


def baseline_label(study: StudyOutcome) -> str | None:
    """What changes are measured against: FedAvg where it was run, else the first algorithm given."""
    plain = [outcome.label for outcome in study.outcomes if outcome.algorithm == "fedavg"]
    return next(iter(plain + study.labels()), None)


def changes(study: StudyOutcome) -> list[Change]:
    """Every other algorithm against the baseline, seed by seed.

    Both saw the same clients, so the pairing removes the part of the spread that comes from who owned what.
    """
    baseline = baseline_label(study)
    found: list[Change] = []
    for alpha in study.alphas():
        reference = {outcome.seed: outcome for outcome in pick(study, alpha, baseline or "")}
        for label in study.labels():
            if label == baseline or not reference:
                continue
            runs = pick(study, alpha, label)
            found += [_change(alpha, label, metric, runs, reference) for metric in HEADLINE if runs]
    return found


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


def _row(alpha: float | None, label: str, runs: list[Outcome], metrics: list[str]) -> Row:
    finished = [outcome for outcome in runs if outcome.diverged is None]
    cells = {metric: _cell(finished, metric) for metric in metrics}
    return Row(alpha, label, len(runs), len(runs) - len(finished), cells)


def _cell(finished: list[Outcome], metric: str) -> Cell:
    defined = [outcome for outcome in finished if math.isfinite(outcome.test.get(metric, math.nan))]
    values = [outcome.test[metric] for outcome in defined]
    return Cell(
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


def _marked(rows: list[Row], metrics: list[str]) -> list[Row]:
    """The rows with the best mean of each metric marked; one row alone is compared with nothing."""
    if len(rows) < 2:
        return rows
    for metric in metrics:
        printed = [round(100 * row.cells[metric].mean, DECIMALS) for row in rows]
        defined = [mean for mean in printed if math.isfinite(mean)]
        if not defined:
            continue
        best = max(defined) if more_is_better(metric) else min(defined)
        rows = [
            replace(row, cells={**row.cells, metric: replace(row.cells[metric], best=mean == best)})
            for row, mean in zip(rows, printed, strict=True)
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
    mean, interval = fmean(values), None
    if len(values) > 1:
        margin = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
        interval = (mean - margin, mean + margin)
    return Change(alpha, label, metric, mean, interval, len(values))
