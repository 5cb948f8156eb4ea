"""The rows to which thresholds are fitted and by which candidates are chosen: held-out rows, and training rows if they
agree with these.

Thresholds fitted to few held-out rows miss a target on new rows by the sampling error of the smallest group's rates.
Training rows are several times as many, and a model that has not memorised them predicts them as it predicts new rows.
They are added if two tests find no difference between the parts:

    shares of the (label, group) cells         chi-square test at 1 %, corrected for the number of runs
    accuracy, as a mean over runs              one-sided z-test at 5 %: not higher on training rows, or by no more than
                                               half the standard error of a rate of the smallest group's held-out rows

The optimism that the second test lets pass is no larger than the sampling error of held-out rows: with 25 of them in a
group, a rate has a standard error of 10 points. Thresholds fitted to these alone are worse than thresholds fitted to
ten times as many rows that a model predicts a few points too well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ffalm.fairness import ScoreHistogram

Parts = Mapping[str, ScoreHistogram]
"""Score histograms of one run's model by part: "validation", and "training" and "test" where they are known."""

_SHARES_LEVEL = 0.01
_ACCURACY_Z = 1.645


@dataclass(frozen=True)
class ChoiceRows:
    """The score histograms that the choice rests on, each run's as its part "validation"."""

    parts: Sequence[Parts]
    training: bool = False  # whether training rows are among them
    why: str = ""  # empty if training rows are not known


def choice_rows(runs: Sequence[Parts]) -> ChoiceRows:
    """Held-out rows with training rows added, or held-out rows alone and why."""
    alone = [{name: one for name, one in run.items() if name != "training"} for run in runs]
    if not all({"training", "test"} <= run.keys() and run["validation"].as_trained is not None for run in runs):
        return ChoiceRows(alone)  # without test rows, the rows of the choice score the answer too
    if min(_same_shares(run) for run in runs) * len(runs) < _SHARES_LEVEL:
        return ChoiceRows(alone, why="training rows have other shares of labels and groups")
    trained, held_out = ([_accuracy(run[part]) for run in runs] for part in ("training", "validation"))
    excess = fmean(trained) - fmean(held_out) - _ACCURACY_Z * fmean(map(_standard_error, runs))
    why = (
        f"the models are more accurate on training rows ({fmean(trained):.1%}) than on held-out rows "
        f"({fmean(held_out):.1%})"
    )
    smallest = min(map(_smallest_group, runs))
    if excess > 0.5 * 0.5 / math.sqrt(smallest):  # a share of n rows has a standard error of up to 0.5 / sqrt(n)
        return ChoiceRows(alone, why=why)
    both = [{**rest, "validation": rest["validation"] + run["training"]} for run, rest in zip(runs, alone, strict=True)]
    few = f"{why}, but of the smallest group only {smallest:,.0f} rows are held out"
    alike = "the models are no more accurate on them than on held-out rows"
    return ChoiceRows(both, training=True, why=few if excess > 0 else alike)


def _same_shares(run: Parts) -> float:
    """The p-value of equal shares of (label, group) cells in both parts."""
    counts = np.array(
        [np.asarray(run[part].counts, np.float64).sum((0, 1)).ravel() for part in ("training", "validation")]
    )
    cells = counts[:, counts.sum(0) > 0]
    if cells.shape[1] < 2 or not counts.any(1).all():
        return 1.0
    expected = np.outer(cells.sum(1), cells.sum(0)) / cells.sum()
    apart = np.abs(cells - expected)
    if cells.shape[1] == 2:
        apart -= apart.clip(max=0.5)  # Yates' correction for one degree of freedom
    return chi_square_tail(float((apart**2 / expected).sum()), cells.shape[1] - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic) of a chi-square variable: Q(freedom / 2, x) with x = statistic / 2, as a finite sum.

    Q(a + 1, x) = Q(a, x) + x^a exp(-x) / Gamma(a + 1), from Q(1, x) = exp(-x) or Q(1/2, x) = erfc(sqrt(x)) up.
    """
    x, even = statistic / 2, freedom % 2 == 0
    if x == 0:
        return 1.0
    start = math.exp(-x) if even else math.erfc(math.sqrt(x))
    orders = (place + (1.0 if even else 0.5) for place in range((freedom - 1) // 2))
    return start + sum(math.exp(a * math.log(x) - x - math.lgamma(a + 1)) for a in orders)


def _smallest_group(run: Parts) -> float:
    """The held-out rows of the smallest of the groups that are compared and have any."""
    rows = run["validation"].compared().counts.sum((0, 1, 2))
    return float(rows[rows > 0].min()) if bool((rows > 0).any()) else math.inf


def _rows(histogram: ScoreHistogram) -> float:
    return float(histogram.counts.sum())


def _accuracy(histogram: ScoreHistogram) -> float:
    """The share of rows that the model's own decision predicts correctly."""
    assert histogram.as_trained is not None
    return float(histogram.correct()[histogram.as_trained].sum()) / max(1.0, _rows(histogram))


def _standard_error(run: Parts) -> float:
    """Of the difference of the two accuracies, were they the same."""
    rows = [max(1.0, _rows(run[part])) for part in ("training", "validation")]
    accuracy = _accuracy(run["training"] + run["validation"])
    return math.sqrt(accuracy * (1 - accuracy) * (1 / rows[0] + 1 / rows[1]))
