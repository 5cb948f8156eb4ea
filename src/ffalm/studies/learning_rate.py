"""The learning rate of a user's own table, for a study with a fairness target and no rate given.

The paper's 0.05 for 70 rounds suits tables of tens of thousands of rows. Where each client takes few steps a round, or
columns are rare categories or have long tails, training ends before the model has learned what it could. FedAvg is
therefore trained at each rate, and the smallest is taken that ranks held-out rows about as well as the best one does:
its AUC is lower by at most half a standard error (Hanley and McNeil 1982), which is about the standard error of a
difference between two models' AUC on the same rows. AUC, since thresholds are fitted after training, which undo
whatever a rate does to the scale of the scores.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

from ffalm.fairness import ScoreHistogram
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings, Training
from ffalm.simulation import DivergedError, simulate

RATES = (Training.lr, 0.2, 0.5, 1.0)
_MOST_ROWS = 300_000  # with more, the usual rate takes enough steps, and trying others would take long
_TOLERANCE = 0.5  # standard errors of the best AUC


@dataclass(frozen=True)
class ChosenRate:
    """A learning rate, and the AUC on held-out rows of each rate that was tried."""

    lr: float
    auc: dict[float, float]

    @property
    def note(self) -> str:
        """What was chosen and why; empty if nothing was tried."""
        if not self.auc:
            return ""
        tried = ", ".join(f"{100 * auc:.1f} at {rate:g}" for rate, auc in self.auc.items())
        return (
            f"The learning rate {self.lr:g} was chosen, the smallest that ranks held-out rows about as well as the "
            f"best: FedAvg's AUC on them, in percent, is {tried}. Setting lr (--lr) leaves this trial out."
        )


def choose_rate(federation: Federation, settings: RunSettings, seed: int) -> ChosenRate:
    """The smallest rate whose AUC on held-out rows is about the best; 0.05 if nothing can be tried.

    Rates are tried in ascending order for as long as they help. A rate at which training diverges is not chosen.
    """
    if not _can_try(federation, settings):
        return ChosenRate(RATES[0], {})
    tried: dict[float, ScoreHistogram] = {}
    for rate in RATES:
        scores = _held_out_scores(federation, settings, seed, rate)
        if scores is None or not math.isfinite(scores.auc()):
            break
        before = next(reversed(tried), None)
        tried[rate] = scores
        if before is not None and _about_as_good(tried, before):
            break
    if len(tried) < 2:
        return ChosenRate(RATES[0], {})
    lr = next(rate for rate in tried if _about_as_good(tried, rate))
    return ChosenRate(lr, {rate: scores.auc() for rate, scores in tried.items()})


def _can_try(federation: Federation, settings: RunSettings) -> bool:
    """Tables of numbers and categories, trained by plain SGD without a privacy budget, with held-out rows."""
    return (
        settings.privacy is None
        and settings.training.optimizer == "sgd"
        and federation.validation is not None
        and federation.first_rows(1).x.ndim == 2
        and sum(map(len, federation.row_views)) <= _MOST_ROWS
    )


def _held_out_scores(federation: Federation, settings: RunSettings, seed: int, rate: float) -> ScoreHistogram | None:
    """Of FedAvg trained at a rate; None if it diverges."""
    trained = replace(settings, training=replace(settings.training, lr=rate))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return simulate("fedavg", federation, seed=seed, **trained.keywords()).scores["validation"]
    except DivergedError:
        return None


def _about_as_good(tried: dict[float, ScoreHistogram], rate: float) -> bool:
    best = max(tried.values(), key=ScoreHistogram.auc)
    return best.auc() - tried[rate].auc() <= _TOLERANCE * _standard_error(best)


def _standard_error(scores: ScoreHistogram) -> float:
    """Of the AUC, by Hanley and McNeil."""
    area = scores.auc()
    rows = scores.counts.sum((0, 1, 3)).double()
    favourable = float(rows[scores.favourable])
    others = float(rows.sum()) - favourable
    pairs = (favourable - 1) * (area / (2 - area) - area**2) + (others - 1) * (2 * area**2 / (1 + area) - area**2)
    return math.sqrt(max(0.0, area * (1 - area) + pairs) / (favourable * others))
