"""The sites of a federation as the clients of a run: asked once a round, and their answers checked."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Fact, Kind, Message, Sites, printable
from ffalm.engines.remote.round_messages import addressed, train_message
from ffalm.engines.server import Clients, ClientUpdate
from ffalm.errors import UserError
from ffalm.federate.coordinator.absences import too_few
from ffalm.federate.coordinator.group_members import GroupMembers
from ffalm.federate.coordinator.histogram_rules import bounded_tallies, unlike
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.introductions import Say
from ffalm.federate.coordinator.members import Members
from ffalm.federate.coordinator.robust_aggregation import FEWEST_COMPARED, robust
from ffalm.federate.coordinator.update_validation import (
    Answer,
    check_counts,
    check_scores,
    outliers,
    outliers_by_loss,
    read_answer,
    read_scores,
)
from ffalm.federate.coordinator.waiting import Patience
from ffalm.federate.disclosure import Disclosed, Scored
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.terms import GROUPS

Scores = dict[str, Scored]
"""The summed scores of each held-out part."""

_Told = dict[str, dict[str, Disclosed]]
"""By site: its scores of each held-out part."""

_COUNT_ATTEMPTS = 2  # at a question, before a site that does not answer is left out of the whole search


class SitesDropped(Exception):
    """Sites that did not answer a question that all must answer, with reasons."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True)
class CountRequest:
    """A question for counts of rows."""

    message: Message
    shape: tuple[int, ...]
    limits: Mapping[str, Tensor]  # by site, the most that counts can be; not known under `secure`
    limit: Tensor  # the most that their sum can be
    purpose: str  # the name of the secure sum
    following: str  # that of the next; empty if this is the last

    def sound(self, rows: Tensor, limit: Tensor) -> bool:
        """Whether an answer can be true."""
        return rows.dtype == torch.int64 and rows.shape == self.shape and bool(((rows >= 0) & (rows <= limit)).all())


@dataclass(eq=False, repr=False)
class SiteRequests:
    """Questions to the members of a federation.

    `missed` has the reason why a site gave no answer, `quarantined` the reason why an answer does not count.
    """

    _sites: Sites
    _members: Members
    _config: FederationConfig
    _fresh: dict[str, Tensor]
    _trained: Collection[str]  # the model's trained parameters
    _say: Say
    _pause: float
    _groups: GroupMembers | None = None  # the members in the training of a model of the groups
    _seen: Members | GroupMembers = field(init=False)  # the members in this training
    missed: dict[str, str] = field(init=False, default_factory=dict)
    quarantined: dict[str, str] = field(init=False, default_factory=dict)
    counted: Mapping[str, int] = field(init=False, default_factory=dict)  # the last round that counted, by site
    scored: Scored = field(init=False)  # the model that was sent, on the validation rows
    histograms: HistogramSum = field(init=False, default_factory=HistogramSum)  # of the final model, with a target
    compares_losses: bool = field(init=False, default=True)  # of the final model; an audit reads counts alone
    _failed: set[str] = field(init=False, default_factory=set)  # the sites that raised an error at the last question

    def __post_init__(self) -> None:
        self._seen = self._groups or self._members
        self.scored = Scored.of({}, self._seen.agreed.task)

    @property
    def _about(self) -> dict[str, Fact]:
        """Facts in every question."""
        return {} if self._groups is None else {"of": GROUPS}

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        return self._fresh

    def _for_site(self, message: Message, site: str) -> Message:
        """A question to one site: with the key of its terms, and the last round in which its answer counted."""
        facts = {**message.facts, "terms": self._members.key(site), "counted": self.counted.get(site, 0)}
        return addressed(replace(message, facts=facts), self._config.sites.index(site))

    def _wait(self, patience: Patience | None, found: int, needed: int) -> Patience:
        """Pause and look for sites that have joined, while the patience lasts that the first wait begins; then stop."""
        rules = self._config.rules
        patience = patience or Patience(rules.patience)
        if patience.over:
            raise too_few(found, needed, rules.patience, self._reasons())
        what = f"{found} of the {needed} sites needed have answered; waiting for more"
        if found >= needed:
            what = f"The answers of {found} sites could not be summed; waiting for those that did not help"
        self._say("waiting", f"{what} {patience.until}.")
        time.sleep(self._pause)
        self._members.settle()
        return patience

    def _answers(self, kind: Kind, messages: dict[str, Message]) -> dict[str, Message]:
        """The sites' answers. For a missing answer `missed` has the reason, for an unreadable one `quarantined`."""
        here = {site: node for site in messages if (node := self._members.node(site)) is not None}
        about = {site: replace(one, facts={**one.facts, **self._about}) for site, one in messages.items()}
        asked = {node: about[site] for site, node in here.items()}
        answers = self._sites.ask(kind, asked, self._config.rules.deadline) if asked else {}
        found: dict[str, Message] = {}
        self._failed = set()
        for site in messages:
            if site not in here:
                self._miss(site)
                continue
            answer = answers[here[site]]
            if isinstance(answer, Message):
                found[site] = answer
                self.missed.pop(site, None)
                continue
            if answer.kind == "unreadable":
                self.missed.pop(site, None)
                self._quarantine(site, f"its answer cannot be read ({answer.trace})")
                continue
            self.missed[site] = f"{answer.kind}: {answer.reason}"
            if answer.kind == "failed":
                self._failed.add(site)
            if answer.kind != "late":
                self._members.forget(site)
        return found

    def _miss(self, site: str) -> None:
        """Note why a site cannot be asked now; it must introduce itself again, so that a refused one is asked anew."""
        self.missed[site] = self._members.absences.reason(site)
        self._members.forget(site)

    def _quarantine(self, site: str, reason: str) -> None:
        reason = printable(reason)  # it may be the site's own
        self.quarantined[site] = reason
        self._say("training", f"The answer of the site {site!r} does not count: {reason}.")

    def _reasons(self) -> list[str]:
        missed = [f"{site}: {reason}" for site, reason in self.missed.items()]
        others = [reason for site, reason in self._members.left_out.items() if site not in self.missed]
        return [*missed, *(f"{site}: {reason}." for site, reason in self.quarantined.items()), *others]


class SiteClients(SiteRequests, Clients):
    """The sites as clients of `rounds`: one message per round, and every answer is checked.

    There is no question for validation scores: sites score a model when they receive it, in the next round.
    """

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One message to each chosen member that is connected; if too few answers count, more while patience lasts.

        From the second time on every member is asked, chosen or not: better others than none.
        """
        rules, names = self._config.rules, self._config.sites
        members = list(self._seen.counts)
        asked = [names[client] for client in chosen if names[client] in members]
        needed = min(rules.min_sites, max(1, len(asked)))
        self.missed, self.quarantined, answers = {}, {}, dict[str, Answer]()
        patience: Patience | None = None
        while True:
            answers |= self._ask([site for site in asked if site not in answers | self.quarantined], sent)
            usable = self._judge(answers, asked, sent)
            if len(usable) >= needed:
                break
            patience = self._wait(patience, len(usable), needed)
            asked = members
        told = {site: usable[site].validation for site in names if site in usable}
        self.scored = Scored.of(told, self._seen.agreed.task)
        private = self._config.privacy is not None  # then held-out Tallies of single rounds are not used
        updates = {
            names.index(site): replace(answer.reply, own={}, validation=None if private else answer.validation.tally)
            for site, answer in sorted(usable.items(), key=lambda item: names.index(item[0]))
        }
        return self._robust(sent, updates if private else self._measured(updates))

    def _measured(self, updates: dict[int, ClientUpdate]) -> dict[int, ClientUpdate]:
        """The updates, with the rules against lying sites applied to the Tallies that the algorithm reads."""
        rules, names, held_out = self._config.rules, self._config.sites, self._config.algorithm.needs_held_out
        read = {client: update.validation if held_out else update.tally for client, update in updates.items()}
        told = {client: tally for client, tally in read.items() if tally is not None}
        out = unlike(told, rules.liars) if rules.aggregation != "mean" else []
        for client in out:
            self._quarantine(
                names[client], "the rule 'aggregation' leaves it out: its Tally is most unlike the others'"
            )
        told = bounded_tallies({client: told[client] for client in told if client not in out}, rules.max_share)
        kept = {client: update for client, update in updates.items() if client not in out}
        return kept | {
            client: replace(kept[client], validation=tally) if held_out else replace(kept[client], tally=tally)
            for client, tally in told.items()
        }

    def _robust(self, sent: Snapshot, updates: dict[int, ClientUpdate]) -> dict[int, ClientUpdate]:
        """The updates under the rule `aggregation`; those that it leaves out are named."""
        rules, names = self._config.rules, self._config.sites
        finite = all(value.isfinite().all() for update in updates.values() for value in update.model.values())
        if rules.aggregation == "mean" or len(updates) < FEWEST_COMPARED or not finite:
            return updates
        rows = dict(enumerate(self._seen.rows().sum((-1, -2)).tolist()))
        kept = robust(rules.aggregation, rules.liars, sent, updates, rows)
        for client in updates.keys() - kept.keys():
            self._quarantine(names[client], "the rule 'aggregation' leaves it out, as farthest from the others")
        return kept

    def score(self, final: Snapshot) -> Scores:
        """The final model's scores on the held-out rows of every member that is connected."""
        rules, names = self._config.rules, self._config.sites
        self.missed, self.quarantined, found, answers = {}, {}, _Told(), dict[str, Message]()
        needed, patience = min(rules.min_sites, len(self._seen.counts)), None
        model = {"model": final.model}
        while True:
            asked = [site for site in self._seen.counts if site not in found | self.quarantined]
            messages = {site: Message(model, {"terms": self._members.key(site)}) for site in asked}
            new = self._answers("score", messages)
            answers |= new
            for site, message in new.items():
                self._take_scores(site, message, found)
            self._judge_scores(found)
            if len(found) >= needed:
                break
            patience = self._wait(patience, len(found), needed)
        task = self._seen.agreed.task
        if self._config.target is not None:
            usable = {site: answers[site] for site in names if site in found}
            self.histograms = HistogramSum.of(usable, self._seen.counts, task, rules)
        return {
            part: Scored.of({site: found[site][part] for site in names if site in found}, task)
            for part in ("validation", "test")
        }

    def count(self, asked: CountRequest, sites: Sequence[str]) -> Tensor:
        """Counts of rows, added up over these sites; raises `SitesDropped` if one gives no valid answer."""
        self.missed, self.quarantined, found = {}, {}, dict[str, Tensor]()
        for attempt in range(_COUNT_ATTEMPTS):
            if attempt:
                time.sleep(self._pause)
                self._members.settle()
            left = [site for site in sites if site not in found | self.quarantined]
            answers = self._answers("score", {site: self._for_site(asked.message, site) for site in left})
            for site, answer in answers.items():
                rows = answer.tensors.get("counts", {}).get("rows")
                if rows is not None and asked.sound(rows, asked.limits[site]):
                    found[site] = rows
                else:
                    self._quarantine(site, "its counts for a blind rule are not of the rows that it agreed to have")
            if len(found) == len(sites):
                return torch.stack(list(found.values())).sum(0)
        raise SitesDropped({**self.missed, **self.quarantined})

    def _ask(self, asked: Iterable[str], sent: Snapshot) -> dict[str, Answer]:
        """The well-formed answers to a round."""
        task, algorithm = self._seen.agreed.task, self._config.algorithm
        message = train_message(sent, algorithm, own_step=True)
        messages = {site: self._for_site(message, site) for site in self._config.sites if site in asked}
        read: dict[str, Answer] = {}
        for site, answer in self._answers("train", messages).items():
            try:
                well = read_answer(answer, sent, task, algorithm, self._trained)
                if well.finite:
                    check_counts(well, self._seen.counts[site], algorithm.measure, self._config.training)
                read[site] = well
            except UserError as error:
                self._quarantine(site, str(error))
        return read

    def _judge(self, answers: dict[str, Answer], asked: Sequence[str], sent: Snapshot) -> dict[str, Answer]:
        """The answers that count.

        If no answer is finite, the training itself diverged. A single one of several members does not prove that, so
        the others are asked too. Under privacy all answers count: each change is bounded anyway, and comparing it with
        the others' would reveal something about them.
        """
        if self._config.privacy is not None:
            return dict(answers)
        finite = {site: answer for site, answer in answers.items() if answer.finite}
        if not finite and answers and len(answers) == len(asked):
            return answers if len(asked) > 1 or len(self._seen.counts) == 1 else {}
        for site in answers.keys() - finite.keys():
            self._quarantine(site, "its answer holds numbers that are not finite")
            del answers[site]
        names = self._config.sites
        replies = {
            names.index(site): replace(answer.reply, validation=answer.validation.tally)
            for site, answer in finite.items()
        }
        for client, reason in outliers(sent, replies, self._config.rules.outlier).items():
            self._quarantine(names[client], reason)
            del finite[names[client]], answers[names[client]]
        return finite

    def _take_scores(self, site: str, message: Message, found: _Told) -> None:
        task, counts = self._seen.agreed.task, self._seen.counts[site]
        try:
            scores = {part: read_scores(message, part, task) for part in ("validation", "test")}
            for part, told in scores.items():
                check_scores(told, counts, part)
            found[site] = scores
        except UserError as error:
            self._quarantine(site, str(error))

    def _judge_scores(self, found: _Told) -> None:
        """Leave out scores with a loss far from the others'; under privacy none, as in `_judge`."""
        if self._config.privacy is None and self.compares_losses:
            for site, reason in outliers_by_loss(found, self._config.rules.outlier).items():
                self._quarantine(site, reason)
                del found[site]
