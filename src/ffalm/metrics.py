"""Fairness metrics for predictions made anywhere: `ffalm.metrics.tally(y_true, y_pred, group).dpd()`."""

from ffalm.fairness import METRICS, Tally, tally

__all__ = ["METRICS", "Tally", "tally"]
