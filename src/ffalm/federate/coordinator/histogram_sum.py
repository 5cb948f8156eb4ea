"""The sites' score histograms of the final model, added up: what the answer to a fairness target rests on."""

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
    """The sums over sites of the parts of which any row is told, each site's own where it is known, and why one is not
    in the sums. The scores of a site whose histograms cannot be used count all the same."""

    parts: Histograms = field(default_factory=dict)
    own: dict[str, Histograms] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()  # sites that count with fewer rows than they have: see `max_share`

    @classmethod
    def of(
        cls, answers: Mapping[str, Message], counts: Mapping[str, Counts], task: Task, rules: Rules | None = None
    ) -> HistogramSum:
        """The sum of what single sites answered, under the rules against lying ones."""
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
        """Sums over these sites of which no single answer is known."""
        try:
            check_rows(parts, list(counts.values()))
        except UserError as error:
            return cls(missing=dict.fromkeys(counts, f"in the secure sum, {error}"))
        return cls(_told(parts))

    def without(self, reasons: Mapping[str, str]) -> HistogramSum:
        """The same without some sites, and why."""
        own = {site: one for site, one in self.own.items() if site not in reasons}
        return HistogramSum(_summed(own), own, {**self.missing, **reasons})

    def by_site(self, sites: Sequence[str]) -> dict[str, list[ScoreHistogram]]:
        """Each site's own by part, of no rows where they are not known; nothing where nobody's are."""
        if not self.own:
            return {}
        empty = {part: replace(one, counts=torch.zeros_like(one.counts)) for part, one in self.parts.items()}
        return {part: [self.own.get(site, empty)[part] for site in sites] for part in self.parts}


def check_rows(histograms: Histograms, agreed: Sequence[Counts]) -> None:
    """Raise `UserError` where histograms are of other rows than their sites agreed to have."""
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
