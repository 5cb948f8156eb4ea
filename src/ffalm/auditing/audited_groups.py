"""The numbers of an audit for one way of grouping rows: those of their counts, and those of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ffalm.auditing.audit_facts import CalibrationBin, Estimate, GroupFacts, GroupingFacts, SweptThreshold
from ffalm.auditing.counted_groups import CountedGroups
from ffalm.data.table_groups import Grouping, code_groups, group_column
from ffalm.fairness import METRICS, Tally
from ffalm.fairness.calibration import calibration_bins, calibration_error
from ffalm.fairness.intervals import for_all_pairs, largest_difference
from ffalm.fairness.ranking import area_interval, delong

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_SWEPT = ("accuracy", "dpd", "eod", "impact_ratio", "worst_group_accuracy")
_THRESHOLDS = 19


@dataclass(frozen=True, eq=False)
class AuditedRows:
    """The rows without their groups; the favourable label is the last."""

    labels: Codes
    predicted: Codes
    scores: Array | None
    probabilities: bool
    names: tuple[str, ...]
    level: float

    @property
    def favourable(self) -> int:
        """The number of the favourable label."""
        return len(self.names) - 1

    def tally(self, predicted: Codes, groups: Codes, count: int) -> Tally:
        """The counts of these predictions."""
        tensors = [torch.from_numpy(one) for one in (predicted, self.labels, groups)]
        blank = torch.full(tensors[0].shape, torch.nan)
        return Tally.of(tensors[0], blank, tensors[1], tensors[2], (len(self.names), count))


@dataclass(frozen=True, eq=False)
class AuditedGroups:
    """The rows with the groups of some columns: compared ones first, then small ones, rows without a group last."""

    rows: AuditedRows
    name: str
    grouping: Grouping
    small: frozenset[str]
    unknown: bool  # whether the last group is that of rows without one

    @classmethod
    def of(
        cls, rows: AuditedRows, frame: pd.DataFrame, columns: Sequence[str], min_group: int, what: str
    ) -> AuditedGroups:
        """The groups of these columns; those of fewer than `min_group` rows are not compared."""
        found = code_groups(group_column(frame, columns, what), (), (), what)
        known = found.names[: len(found.names) - found.excluded]
        counts = np.bincount(found.codes, minlength=len(known))
        small = frozenset(name for name, count in zip(known, counts, strict=False) if count < min_group)
        grouping = found  # if fewer than two groups are large enough, all are compared, and small ones are flagged
        if len(known) - len(small) >= 2:
            grouping = found.with_small_last(np.arange(len(found.codes)), min_group, what)
        return cls(rows, ", ".join(columns), grouping, small, found.excluded > 0)

    def facts(self) -> GroupingFacts:
        """Everything that an audit says about these groups."""
        rows, names = self.rows, self.grouping.names
        tally = rows.tally(rows.predicted, self.grouping.codes, len(names)).excluding(self.grouping.excluded)
        found = CountedGroups(
            self.name, tally, names, rows.names, rows.favourable, self.small, self.unknown, rows.level
        ).facts()
        if rows.scores is None:
            return found
        groups = tuple(self._with_scores(place, one) for place, one in enumerate(found.groups))
        return replace(found, groups=groups, metrics=found.metrics | self._of_scores(groups), sweep=self._sweep())

    def _with_scores(self, place: int, group: GroupFacts) -> GroupFacts:
        """A group with the metrics of its scores."""
        rows, own = self.rows, self.grouping.codes == place
        assert rows.scores is not None
        scores, wants = rows.scores[own], rows.labels[own] == rows.favourable
        area, variance = self._areas[place]
        metrics = {**group.metrics, "auc": Estimate(area, *area_interval(area, variance, rows.level))}
        if not rows.probabilities:
            return replace(group, metrics=metrics)
        bins = calibration_bins(scores, wants)
        metrics |= {
            "calibration_error": Estimate(calibration_error(bins)),
            "mean_score_excess": _excess(scores, wants, rows.level),
        }
        return replace(group, metrics=metrics, calibration=tuple(CalibrationBin(*one) for one in bins))

    def _of_scores(self, groups: Sequence[GroupFacts]) -> dict[str, Estimate]:
        """The area under the ROC curve of all rows, its largest gap, and the largest calibration error."""
        rows = self.rows
        assert rows.scores is not None
        area, variance = delong(rows.scores, rows.labels == rows.favourable)
        compared = [place for place, one in enumerate(groups) if one.compared]
        found = {
            "auc": Estimate(area, *area_interval(area, variance, rows.level)),
            "auc_gap": _largest_gap([self._areas[place] for place in compared], rows.level),
        }
        if rows.probabilities:
            errors = (groups[place].metrics["calibration_error"].value for place in compared)
            found["calibration_error"] = Estimate(max(errors))
        return found

    @cached_property
    def _areas(self) -> list[tuple[float, float]]:
        """The area under the ROC curve of each group, and its variance."""
        rows, codes = self.rows, self.grouping.codes
        assert rows.scores is not None
        masks = (codes == place for place in range(len(self.grouping.names)))
        return [delong(rows.scores[own], rows.labels[own] == rows.favourable) for own in masks]

    def _sweep(self) -> tuple[SweptThreshold, ...]:
        """Metrics at thresholds of the score: evenly spaced for probabilities, else at quantiles."""
        rows, count = self.rows, len(self.grouping.names)
        assert rows.scores is not None
        places = np.arange(1, _THRESHOLDS + 1) / (_THRESHOLDS + 1)
        found = []
        labels = (rows.labels == rows.favourable).astype(np.int64)
        for threshold in places if rows.probabilities else np.unique(np.quantile(rows.scores, places)):
            chosen = (rows.scores >= threshold).astype(np.int64)
            binary = AuditedRows(labels, chosen, None, False, ("other", rows.names[-1]), rows.level)
            tally = binary.tally(chosen, self.grouping.codes, count).excluding(self.grouping.excluded)
            metrics = {name: float(METRICS[name](tally, 1)) for name in _SWEPT}
            found.append(SweptThreshold(float(threshold), float(chosen.mean()), metrics))
        return tuple(found)


def _largest_gap(areas: Sequence[tuple[float, float]], level: float) -> Estimate:
    """The largest difference between areas of several groups, with the interval that other largest differences have.

    Groups that are farthest apart were chosen among all pairs, so the interval is not that of two groups alone.
    """
    values = np.array([area for area, _ in areas])
    levels = (level, for_all_pairs(level, [len(areas)]))
    ends = [np.array([area_interval(*one, each) for one in areas]) for each in levels]
    return Estimate(float(values.max() - values.min()), *largest_difference((values, ends[0]), (values, ends[1])))


def _excess(scores: Array, favourable: NDArray[np.bool_], level: float) -> Estimate:
    """By how much the mean score exceeds the share that is favourable."""
    rows, excess = len(scores), scores - favourable
    half = NormalDist().inv_cdf(0.5 + level / 2) * float(excess.std(ddof=1)) / math.sqrt(rows) if rows > 1 else math.nan
    mean = float(excess.mean())
    return Estimate(mean, mean - half, mean + half)
