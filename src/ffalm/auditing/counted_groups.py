"""The numbers of an audit that follow from counts alone: rates of groups, gaps, the groups farthest apart, bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ffalm.auditing.audit_facts import Estimate, GroupFacts, GroupingFacts, Pair
from ffalm.fairness import METRICS, Tally
from ffalm.fairness.intervals import compared_shares, farthest, for_all_pairs, newcombe, ratio_interval, wilson
from ffalm.fairness.missing_groups import BOUNDED, bounds

#: The metrics that compare groups; those of losses and of joint probabilities are not about predictions.
OVERALL = tuple(name for name in METRICS if name not in ("loss", "loss_gap", "joint_dpd", "joint_eod"))
_PAIRED = ("dpd", "eod", "equalized_odds", "predictive_parity", "accuracy_parity")


@dataclass(frozen=True, eq=False)
class CountedGroups:
    """Rows by prediction, label and group: compared groups first, then small ones, rows without a group last."""

    name: str  # of the group columns
    tally: Tally
    names: tuple[str, ...]  # of the groups
    labels: tuple[str, ...]
    favourable: int
    small: frozenset[str] = frozenset()
    unknown: bool = False  # whether the last group is that of rows without one
    level: float = 0.95  # of intervals

    def facts(self) -> GroupingFacts:
        """All facts that follow from the counts."""
        tally, favourable = self.tally, self.favourable
        metrics = {
            name: Estimate(float(METRICS[name](tally, favourable)), *tally.interval(name, self.level, favourable))
            for name in OVERALL
        }
        groups = tuple(self._group(place) for place in range(len(self.names)))
        outside = Tally.of_counts(tally.confusion[..., -1:] if self.unknown else 0 * tally.confusion[..., :1])
        unknown = int(outside.count.sum())
        ends = {name: bounds(tally.compared(), outside, name, favourable) for name in BOUNDED} if unknown else None
        return GroupingFacts(self.name, groups, metrics, self._pairs(metrics), unknown, ends)

    def _group(self, place: int) -> GroupFacts:
        """The rates of one group, each with Wilson's interval."""
        counts, favourable = self.tally.confusion[..., place], self.favourable
        total, wanted, chosen = counts.sum(), counts[:, favourable].sum(), counts[favourable].sum()
        found = {
            "base_rate": (wanted, total),
            "selection_rate": (chosen, total),
            "true_positive_rate": (counts[favourable, favourable], wanted),
            "false_positive_rate": (chosen - counts[favourable, favourable], total - wanted),
            "precision": (counts[favourable, favourable], chosen),
            "accuracy": (counts.diagonal().sum(), total),
        }
        shares = {name: (float(hits), float(trials)) for name, (hits, trials) in found.items()}
        metrics = {
            name: Estimate(hits / trials if trials else math.nan, *wilson(hits, trials, self.level))
            for name, (hits, trials) in shares.items()
        }
        metrics["impact_ratio"] = self._impact_ratio(place)
        name = self.names[place]
        compared = place < len(self.names) - self.tally.excluded
        return GroupFacts(name, int(total), compared, name in self.small, metrics)

    def _impact_ratio(self, place: int) -> Estimate:
        """A group's selection rate over the highest of the compared groups', with Donner and Zou's interval."""
        shares = compared_shares(self.tally, "dpd", self.favourable)[0]
        compared = shares[: len(shares) - self.tally.excluded]
        rates = [hits / trials if trials else math.nan for hits, trials in compared]
        best = compared[int(np.nanargmax(rates))] if not np.isnan(rates).all() else (0.0, 0.0)
        own = shares[place]
        if not own[1] or not best[0]:
            return Estimate(math.nan)
        ratio = (own[0] / own[1]) / (best[0] / best[1])
        return Estimate(1.0) if own is best else Estimate(ratio, *ratio_interval(own, best, self.level))

    def _pairs(self, metrics: Mapping[str, Estimate]) -> dict[str, Pair]:
        found = {}
        for name in _PAIRED:
            if math.isnan(metrics[name].value) or metrics[name].value == 0:
                continue
            shares = compared_shares(self.tally.compared(), name, self.favourable)
            which, high, low = farthest(shares)
            pair = shares[which][high], shares[which][low]
            level = for_all_pairs(self.level, [len(own) for own in shares])
            difference = Estimate(metrics[name].value, *newcombe(*pair, level))
            label = self.labels[which] if len(shares) > 1 else None
            found[name] = Pair(self.names[high], self.names[low], label, difference)
        return found
