"""When a model is degenerate: it predicts one label for nearly everybody, is less accurate than the most frequent
label, or has a dual that ran away. Its gaps may be small, yet it is never called the best or the fairest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A model that predicts one label for a larger share of the rows than this is degenerate.
ONE_LABEL = 0.99
#: A dual of a larger size than this has run away: the constraint outweighs the loss, whose weight is 1. In the runs of
#: docs/results, models trained with duals beyond 20 lost 10 to 50 points of accuracy.
LARGEST_DUAL = 100.0


@dataclass(frozen=True)
class Flaws:
    """What is wrong with the model of one run."""

    one_label: bool
    below_majority: bool
    runaway_dual: bool

    def __bool__(self) -> bool:
        return self.one_label or self.below_majority or self.runaway_dual


def flaws_of(predicted: Sequence[float], actual: Sequence[float], accuracy: float, dual: float = 0.0) -> Flaws:
    """Judge a model by how many rows have each label, predicted and actual, and by its largest absolute dual."""
    rows = sum(predicted)
    return Flaws(
        one_label=rows > 0 and max(predicted) > ONE_LABEL * rows,
        below_majority=rows > 0 and accuracy < majority_share(actual),
        runaway_dual=dual > LARGEST_DUAL,
    )


def majority_share(actual: Sequence[float]) -> float:
    """The accuracy of always predicting the most frequent label; 0 without rows."""
    rows = sum(actual)
    return max(actual) / rows if rows else 0.0


def degenerate_reason(
    single: int, runs: int, accuracy: float, majority: float, runaway: int = 0, rows: str = "test rows"
) -> str:
    """Why the models of some runs are degenerate, empty if they are not.

    They are degenerate if any run predicts one label for nearly all rows (`single` counts these) or has a dual that ran
    away, or if the mean accuracy is below the majority share.
    """

    def where(count: int) -> str:
        return f"in {count} of {runs} runs " if runs > 1 else ""

    reasons = []
    if single:
        reasons.append(f"{where(single)}one label is predicted for over {100 * ONE_LABEL:g} % of the {rows}")
    if accuracy < majority:
        reasons.append(f"accuracy is below the majority share ({100 * majority:.1f} %)")
    if runaway:
        reasons.append(f"{where(runaway)}a dual ran away (beyond {LARGEST_DUAL:g})")
    return " and ".join(reasons)
