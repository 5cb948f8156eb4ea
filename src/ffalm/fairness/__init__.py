"""Group fairness: the Tally and everything that is computed from one."""

from ffalm.fairness.group_metrics import METRICS, undefined
from ffalm.fairness.groups import group_means, masked_mean
from ffalm.fairness.histograms import ScoreHistogram
from ffalm.fairness.tally import Tally, tally

__all__ = ["METRICS", "ScoreHistogram", "Tally", "group_means", "masked_mean", "tally", "undefined"]
