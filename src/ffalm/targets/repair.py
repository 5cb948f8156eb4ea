"""Repair: thresholds on a trained model's scores, fitted to summed histograms of held-out rows.

    none        the model's own decision, score >= 0
    accurate    the most accurate threshold for everybody alike, whatever the target
    single      the same within the target, if there is one
    groups      one threshold per group: needs the group at prediction, which some uses forbid by law
    randomised  the same, drawn for each row from a few thresholds per group: reaches what fixed ones cannot

A row whose group is not known, or is not compared, gets the single threshold.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ffalm.errors import UserError, require, unknown
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.histograms import AS_TRAINED, BINS, bins_of, edge_of, edge_value
from ffalm.targets.degenerate import ONE_LABEL, Flaws, flaws_of
from ffalm.targets.margins import confidence_end, with_margin
from ffalm.targets.randomised import mixed_thresholds
from ffalm.targets.rate_table import Array, Costs, RateTable
from ffalm.targets.target import KINDS, Kind, Target
from ffalm.targets.thresholds import group_thresholds, single_threshold

if TYPE_CHECKING:
    from torch import Tensor

#: The file, beside a model, of the thresholds of the answer to a fairness target, or of its blind rule.
REPAIR = "repair.json"
#: The folder, beside a model, of the model of the groups that its blind rule takes.
GROUPS = "groups"

Mix = tuple[tuple[int, float], ...]
"""Edges with their probabilities; one edge with probability 1 if nothing is drawn."""


@dataclass(frozen=True)
class Repair:
    """Thresholds by group, as bin edges of a score histogram."""

    kind: Kind
    edges: tuple[Mix, ...]  # of each group
    single: int = AS_TRAINED  # for rows of an unknown group

    @classmethod
    def fixed(cls, kind: Kind, edges: Sequence[int], single: int) -> Repair:
        """One threshold per group."""
        return cls(kind, tuple(((edge, 1.0),) for edge in edges), single)

    @property
    def by_group(self) -> bool:
        """Whether thresholds differ between groups, so that predictions need the group."""
        return len({*self.edges, ((self.single, 1.0),)}) > 1

    def tally(self, histogram: ScoreHistogram) -> Tally:
        """The Tally of the repaired predictions; expected counts if thresholds are drawn."""
        if all(len(mix) == 1 for mix in self.edges):
            return histogram.tally([mix[0][0] for mix in self.edges])
        weights = np.zeros((len(histogram.counts) + 1, len(self.edges)))
        for group, mix in enumerate(self.edges):
            for edge, weight in mix:
                weights[edge, group] = weight
        return histogram.mixed_tally(weights)

    def favourable(self, scores: Tensor, groups: Tensor | None, draws: Tensor | None = None) -> Tensor:
        """Whether each row is predicted favourable; groups outside 0..K-1 are unknown.

        `draws` are uniform numbers, one per row, that decide between several thresholds: see `draws_of_rows`.
        """
        import torch

        places = bins_of(scores)
        if groups is None:
            return places >= self.single
        require(
            draws is not None or all(len(mix) == 1 for mix in self.edges),
            "These thresholds are randomised: predictions need one draw per row.",
        )
        uniform = torch.zeros_like(places, dtype=torch.float64) if draws is None else draws
        chosen = places >= self.single
        for group, mix in enumerate(self.edges):
            reached = sum((places >= edge) * weight for edge, weight in mix)
            chosen = torch.where(groups == group, reached > uniform, chosen)
        return chosen

    def to_plain(self, group_names: Sequence[str]) -> dict[str, Any]:
        """Plain values for a file; thresholds are those of the score, infinite for everybody or nobody."""
        return {
            "kind": self.kind,
            "score": "logit of the favourable label minus the largest other logit",
            "single": _text(self.single),
            "groups": {
                name: [{"threshold": _text(edge), "probability": weight} for edge, weight in mix]
                for name, mix in zip(group_names, self.edges, strict=True)
            },
        }

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Repair:
        """The inverse of `to_plain`."""
        try:
            mixes = tuple(
                tuple((_edge(one["threshold"]), float(one["probability"])) for one in mix)
                for mix in values["groups"].values()
            )
            return cls(kind_of(values["kind"]), mixes, _edge(values["single"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"These thresholds cannot be read ({error!r}): run the repair again.") from None


def fit(
    histogram: ScoreHistogram,
    target: Target,
    kind: Kind = "groups",
    costs: Costs | None = None,
    level: float = 0.5,
    smooth: bool = True,
) -> Repair | None:
    """The best thresholds of a kind within the target on a histogram; None if there are none.

    Groups that are not compared count for accuracy alone and get the single threshold.

    The one-sided confidence bound of each gap at `level` must be within its bound; at 0.5 that is the gap itself.
    `smooth` compares accuracies averaged over neighbouring thresholds, so that few rows do not decide between them;
    gaps are never averaged.

    If one label is rare, the most accurate thresholds may predict the other for nearly everybody, which is degenerate.
    Thresholds that predict both labels are then used instead, unless they are degenerate too.
    """
    groups, own = histogram.groups, histogram.as_trained
    if kind == "none":
        return None if own is None else Repair.fixed("none", [own] * groups, own)
    free, table = RateTable.of(histogram, None, costs), RateTable.of(histogram.compared(), target, costs)
    if smooth:
        free, table = free.smoothed(), table.smoothed()
    found = _fit(histogram, free, table, kind, level)
    if found is None or kind == "randomised" or not _flaws(found, histogram, costs).one_label:
        return found
    free, table = free.of_both_labels(ONE_LABEL, together=True), table.of_both_labels(ONE_LABEL)
    other = _fit(histogram, free, table, kind, level)
    return found if other is None or _flaws(other, histogram, costs) else other


def _flaws(repair: Repair, histogram: ScoreHistogram, costs: Costs | None) -> Flaws:
    """What is wrong with thresholds; accuracy does not count if costs are given."""
    tally = repair.tally(histogram)
    predicted, actual = tally.confusion.sum((-1, -2)).tolist(), tally.count.sum(-1).tolist()
    return flaws_of(predicted, actual, tally.accuracy() if costs is None else 1.0)


def _fit(histogram: ScoreHistogram, free: RateTable, table: RateTable, kind: Kind, level: float) -> Repair | None:
    """The best thresholds of a kind by a table of all groups without constraints and one of those compared."""
    groups, near = histogram.groups, AS_TRAINED if histogram.as_trained is None else histogram.as_trained
    start = single_threshold(free, near)
    if kind in ("accurate", "single"):
        within = replace(table, value=free.value)  # accurate for everybody, fair to those who are compared
        edge = start if kind == "accurate" else single_threshold(within, near, level)
        return Repair.fixed(kind, [edge] * groups, edge)
    if kind == "groups":
        edges = group_thresholds(table, start, level)
        return None if edges is None else Repair.fixed("groups", [*edges, *[start] * histogram.excluded], start)
    if level > 0.5:
        weights = with_margin(table, mixed_thresholds, lambda found: _confident(table, found, level))
    else:
        weights = mixed_thresholds(table)
    if weights is None:
        return None
    mixes = tuple(tuple((int(edge), float(own[edge])) for edge in np.flatnonzero(own)) for own in weights)
    others: tuple[Mix, ...] = (((start, 1.0),),) * histogram.excluded
    return Repair("randomised", mixes + others, start)


def draws_of_ids(ids: Iterable[bytes]) -> Tensor:
    """A uniform number for each id, so that the same person gets the same answer in every call and program."""
    return _uniform(map(_digest, ids))


def draws_of_rows(contents: Iterable[bytes]) -> Tensor:
    """A uniform number for each row, by its content and by how many rows before it have the same content.

    With one draw for all rows of the same content, groups of tied scores would all be decided alike, and rates would be
    far from those that thresholds were fitted to. The same rows in the same order get the same answers.
    """
    return _uniform(_made_distinct(map(_digest, contents)))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _made_distinct(digests: Iterable[bytes]) -> Iterator[bytes]:
    """The first of equal digests as it is, like that of a row predicted alone; the others hashed with their number."""
    seen: Counter[bytes] = Counter()
    for one in digests:
        yield _digest(one + seen[one].to_bytes(8, "big")) if seen[one] else one
        seen[one] += 1


def _uniform(digests: Iterable[bytes]) -> Tensor:
    import torch

    numbers = [int.from_bytes(digest, "big") for digest in digests]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu") / 2.0**64


def _confident(table: RateTable, weights: Array, level: float) -> bool:
    ends = ((one, confidence_end(one, (weights * one.hits).sum(1), level)) for one in table.constraints)
    return all(one.bound.meets(float(end)) for one, end in ends)


def _text(edge: int) -> float | str:
    value = edge_value(edge)
    return value if math.isfinite(value) else str(value)


def _edge(value: float | str) -> int:
    number = float(value)
    if math.isinf(number):
        return 0 if number < 0 else BINS
    edge = edge_of(number)
    require(edge_value(edge) == number, f"The threshold {number} is not an edge of a score histogram.")
    return edge


def kind_of(name: str) -> Kind:
    """A kind of thresholds by its name."""
    if name not in KINDS:
        raise unknown("kind of repair", name, KINDS)
    return name
