"""The sum of the sites' score histograms of the final model, to which the answer to a fairness target is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import torch

from ffalm.data.types import Task
from ffalm.engines.remote.message import Message
from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.federate.coordinator.histogram_rules import bounded, farthest
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.federation_config import Rules
from ffalm.federate.histogram_bytes import PARTS, unpacked_histograms

Histograms = dict[str, ScoreHistogram]
"""By part: "training", "validation" and "test"."""

_DECLINED = "its site.toml says to send no score histograms"


@dataclass(frozen=True)
class HistogramSum:
    """The sums over sites of parts with any counts, each site's own if it is known, and why a site is not in them.

    The metrics of a site whose histograms cannot be used still count.
    """

    parts: Histograms = field(default_factory=dict)
    own: dict[str, Histograms] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()  # sites that count with fewer rows than they have: see `max_share`

    @classmethod
    def of(
        cls, answers: Mapping[str, Message], counts: Mapping[str, Counts], task: Task, rules: Rules | None = None
    ) -> HistogramSum:
        """The sum of single sites' histograms, under the rules against lying sites."""
        own: dict[str, Histograms] = {}
        missing: dict[str, str] = {}
        for site, answer in answers.items():
            try:
                own[site] = _read(answer, task)
                check_rows(own[site], [counts[site]])
            except UserError as error:
                own.pop(site, None)
                missing[site] = str(error)
        if rules is not None and rules.aggregation != "mean":
            for site in farthest(own, rules.liars):
                del own[site]
                missing[site] = "the rule 'aggregation' leaves it out: its scores are most unlike the others'"
        counted = own if rules is None or rules.max_share == 1 else bounded(own, rules.max_share)
        scaled = tuple(
            site for site, parts in own.items() if any(counted[site][part] is not parts[part] for part in parts)
        )
        return cls(_summed(counted), counted, missing, scaled)

    @classmethod
    def of_sums(cls, parts: Histograms, counts: Mapping[str, Counts]) -> HistogramSum:
        """Secure sums over these sites."""
        try:
            check_rows(parts, list(counts.values()))
        except UserError as error:
            return cls(missing=dict.fromkeys(counts, f"in the secure sum, {error}"))
        return cls(_told(parts))

    def without(self, reasons: Mapping[str, str]) -> HistogramSum:
        """The same without some sites, with the reasons."""
        own = {site: one for site, one in self.own.items() if site not in reasons}
        return HistogramSum(_summed(own), own, {**self.missing, **reasons})

    def by_site(self, sites: Sequence[str]) -> dict[str, list[ScoreHistogram]]:
        """By part, each site's own histogram, empty if it is not known; nothing if no site's is known."""
        if not self.own:
            return {}
        empty = {part: replace(one, counts=torch.zeros_like(one.counts)) for part, one in self.parts.items()}
        return {part: [self.own.get(site, empty)[part] for site in sites] for part in self.parts}


def check_rows(histograms: Histograms, agreed: Sequence[Counts]) -> None:
    """Raise `UserError` if histograms count other rows than were agreed."""
    for part, one in histograms.items():
        rows = torch.stack([counts.told[PARTS[part]] for counts in agreed]).sum(0)
        if not torch.equal(one.counts.sum((0, 1)), rows):
            raise UserError(f"the score histogram counts other {part} rows than were agreed")


def _summed(own: Mapping[str, Histograms]) -> Histograms:
    return _told({part: reduce(add, (one[part] for one in own.values())) for part in PARTS} if own else {})


def _told(parts: Histograms) -> Histograms:
    """The parts of which not all cells are withheld."""
    return {part: one for part, one in parts.items() if bool(one.counts.any())}


def _read(answer: Message, task: Task) -> Histograms:
    content = answer.tensors.get("scores", {}).get("histograms")
    if content is None:
        raise UserError(_DECLINED)
    found = unpacked_histograms(content, task)
    if found is None:
        raise UserError("its score histograms are malformed")
    return found
