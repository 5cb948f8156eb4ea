"""A blind rule over real sites: the search of `targets.blind`, each of whose questions is a sum over sites.

The coordinator learns, beside the model of the groups: of held-out rows, by label and group, how many are
predicted favourable by the rules on a line (257 or 65 rules a question), and for how many the model of the groups
predicts their own group; of test rows, how many each of the final rules predicts favourable. Under `secure` it sees
only sums. The offset and the number of rows come from the summed score histograms, the shares of labels and groups
from the agreed counts of training rows, so the rule is that of a simulation over the same rows.
All questions must be about the same rows. If a site leaves, it is left out of the answer, and the search starts again
without it; under `secure`, where two sums over different sites would reveal its counts, the run stops until it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.engines.jobs import Model
from ffalm.engines.remote.message import Fact, Message
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.fairness.histograms import AS_TRAINED
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.site_clients import CountRequest, SiteClients, SitesDropped
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.secure.secure_clients import SecureClients
from ffalm.targets.blind import fit_blind, rule_tally
from ffalm.targets.candidates import LEVELS
from ffalm.targets.judged_rule import best_offset
from ffalm.targets.predicted_rows import cell_shares, known_share
from ffalm.targets.stored_rules import ScoredRule, StoredRules
from ffalm.targets.target import Target

_SINGLE = torch.zeros(1, dtype=torch.float64)  # the only step of a rule by itself


def blind_rules(
    config: FederationConfig,
    task: Task,
    clients: SiteClients | SecureClients,
    models: dict[str, Model],
    training: Tensor,
    histograms: HistogramSum,
    scored: Sequence[str],
) -> tuple[StoredRules, HistogramSum]:
    """The rules for a target at each confidence, and the histograms of the sites whose rows they rest on.

    `models` are "model" and "groups", `training` the training rows by (label, group), `scored` the sites of the
    histograms' sum where no single one is known.
    """
    shares = cell_shares(training, task.favourable)
    too_large = "it has more rows than the rule 'max_share' lets count, and counts for a blind rule are not scaled"
    histograms = histograms.without(dict.fromkeys(histograms.scaled, too_large)) if histograms.scaled else histograms
    while True:
        sites = list(histograms.own) or [site for site in scored if site not in histograms.missing]
        try:
            return _Search(config, task, clients, shares, histograms, sites).rules(models), histograms
        except SitesDropped as left:
            histograms = histograms.without(left.reasons)
            if len(histograms.own) < min(config.rules.min_sites, len(sites)) or "validation" not in histograms.parts:
                told = " ".join(f"{site}: {reason}." for site, reason in left.reasons.items())
                raise UserError(
                    f"Too few sites are left to search a blind rule. {told} Everything before is kept: bring them back "
                    'and run again, or set repair = "single" in federation.toml.',
                    "Too few sites are left to search a blind rule.",
                ) from None


@dataclass
class _Search:
    """One search, over sites that all answer every question."""

    config: FederationConfig
    task: Task
    clients: SiteClients | SecureClients
    shares: Tensor
    histograms: HistogramSum
    sites: Sequence[str]
    asked: int = 0
    known: dict[bytes, Tensor] = field(default_factory=dict)  # answers by question: searches at several levels share

    def rules(self, models: dict[str, Model]) -> StoredRules:
        """The best rule at each confidence that the answer may take, then its scores on test rows."""
        config, task = self.config, self.task
        target = Target.parse(str(config.target))
        told = self._predict(models)
        offset = best_offset(self.histograms.parts["validation"], target)
        totals = self._totals("validation")

        def query(weights: Tensor, line: Tensor, steps: Tensor) -> Tensor:
            return self._count("validation", offset, weights, line, steps)

        levels = LEVELS if config.confidence is None else (config.confidence,)
        fitted = [
            fit_blind(query, totals, self.shares, target, task.favourable, level, offset, task.excluded)
            for level in levels
        ]
        part = "test" if "test" in self.histograms.parts else "validation"
        tests: dict[bytes, Tally] = {}
        weights = {one.rule.weights.numpy().tobytes(): one.rule.weights for one in fitted}
        for place, (key, own) in enumerate(weights.items(), 1):
            if part == "test":
                chosen = self._count("test", offset, own, torch.zeros_like(own), _SINGLE, last=place == len(weights))
                tests[key] = rule_tally(chosen, self._totals("test"), task.favourable, task.excluded)[0]
        rules = tuple(ScoredRule(one, tests.get(one.rule.weights.numpy().tobytes())) for one in fitted)
        before = self.histograms.parts[part].tally([AS_TRAINED] * task.groups).excluding(task.excluded)
        return StoredRules(target, task, known_share(told, totals.sum(0), task.compared), before, rules)

    def _predict(self, models: dict[str, Model]) -> Tensor:
        """Send both models; the held-out rows by (label, group) that are put in their own group."""
        message = Message({**models, "rule": {"shares": self.shares}}, {"stage": "predict"})
        shape = (self.task.labels, self.task.groups)
        return self._ask(message, shape, "validation", "predict")

    def _count(
        self, part: str, offset: float, weights: Tensor, line: Tensor, steps: Tensor, last: bool = False
    ) -> Tensor:
        key = b" ".join([part.encode(), *(one.numpy().tobytes() for one in (weights, line, steps))])
        if key not in self.known:
            self.asked += 1
            facts: dict[str, Fact] = {"stage": "count", "part": part, "offset": offset, "number": self.asked}
            message = Message({"rule": {"weights": weights, "line": line, "steps": steps}}, facts)
            shape = (len(steps), *self._totals(part).shape)
            self.known[key] = self._ask(message, shape, part, f"count {self.asked}", last)
        return self.known[key]

    def _ask(self, message: Message, shape: tuple[int, ...], part: str, purpose: str, last: bool = False) -> Tensor:
        by_fallback = len(shape) > 2
        limits = {site: one[part].counts.sum(0 if by_fallback else (0, 1)) for site, one in self.histograms.own.items()}
        limit = self._totals(part) if by_fallback else self._totals(part).sum(0)
        following = "" if last else f"count {self.asked + 1}"
        return self.clients.count(CountRequest(message, shape, limits, limit, purpose, following), self.sites)

    def _totals(self, part: str) -> Tensor:
        """Rows by (fallback, label, group)."""
        return self.histograms.parts[part].counts.sum(0)
