"""Questions to the sites of a federation whose answers are only ever seen in sums.

The messages of a run, besides hello and agree:

    key     once for each site: its public key, for which others seal messages
    offer   before the first round, and before a round whose sites are not those of the round before
    train   each round: offers are forwarded, the model goes out, masked answers come back
    confirm if a site dropped out of a round after its offer: the others sign who did
    reveal  each round: shares that remove the masks, and with them the offers for the next round
    score   once, instead of train; after the last reveal the sites forget their secrets

So a round is two messages to each site, one more if a site joined, and one more if a site dropped out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Fact, Kind, Message, printable
from ffalm.engines.remote.round_messages import train_message
from ffalm.errors import PublicError, UserError
from ffalm.fairness import Tally
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.site_clients import CountRequest, Scores, SiteRequests
from ffalm.federate.coordinator.waiting import Patience
from ffalm.federate.disclosure import Scored
from ffalm.federate.secure.aggregator import NO_SECRET, Aggregator, TooFew
from ffalm.federate.secure.circles import needed
from ffalm.federate.secure.crypto import valid_public_key
from ffalm.federate.secure.first_asked import FirstAsked
from ffalm.federate.secure.fixed_point import Words
from ffalm.federate.secure.histogram_payload import count_bits, read_histograms, with_histograms
from ffalm.federate.secure.misdealing import Misdealing
from ffalm.federate.secure.payload import (
    COUNTS,
    RoundSum,
    Uploads,
    counts_layout,
    read_noisy_tally,
    read_tally,
    round_layout,
    round_sum,
    score_layout,
)
from ffalm.federate.secure.protocol import Circle, Offer, SignedKey
from ffalm.federate.secure.requested_sum import Sum
from ffalm.federate.secure.secure_answers import revealed_shares, unusable_clients
from ffalm.federate.secure.secure_settings import Secure
from ffalm.federate.secure.secure_site import passed_text, question_key, words_of
from ffalm.privacy.tallies import made_whole, reach


@dataclass(eq=False, repr=False)
class SecureClients(SiteRequests):
    """Sums over the members of a federation."""

    first: FirstAsked = field(init=False, default_factory=FirstAsked)
    _keys: dict[str, SignedKey] = field(init=False, default_factory=dict)  # public, by site
    _found: int = field(init=False, default=0)  # how many sites answered the last question of this attempt
    _ready: Aggregator | None = field(init=False, default=None)  # the attempt whose offers came with the last reveal

    @property
    def summed(self) -> list[int]:
        """The clients in the last sum."""
        return self._numbers(self.scored.sites)

    @property
    def _secure(self) -> Secure:
        assert self._config.secure is not None
        return self._config.secure

    @property
    def _private(self) -> bool:
        """Whether sites bound their numbers and add noise."""
        return self._config.privacy is not None

    def round(
        self, chosen: Sequence[int], sent: Snapshot, uploads: Uploads, upcoming: Sequence[int] | None
    ) -> RoundSum:
        """The sum of the sites' answers to a round.

        `upcoming` are the clients of the next round, which make their offers in the same message; None in the last
        round, after which all sites score.
        """
        names, task = self._config.sites, self._seen.agreed.task
        layout = round_layout(sent, uploads, task, self._secure, len(names), self._private)
        message = train_message(sent, self._config.algorithm, own_step=True)

        def after() -> Sequence[str]:
            return list(self._seen.counts) if upcoming is None else [names[client] for client in upcoming]

        number = sent.round + 1
        following = "score" if upcoming is None else f"train {number + 1}"
        largest = int(self.first.number(f"train {number}", int(self._seen.rows().sum((-1, -2)).max())))
        asked = Sum("train", f"train {number}", message, layout, largest, following, after)
        sums, summed = self._sum(asked, [names[client] for client in chosen])
        found = round_sum(layout, layout.values(sums), sent, uploads, len(summed), largest)
        rows = sum(min(self._seen.counts[site].rows, largest) for site in summed)
        self._check(rows == found.rows, "training")
        validation = found.validation
        if validation is not None:
            self._check_tally("validation", validation, summed)
        self.scored = Scored(summed, validation or Tally.zeros((task.labels, task.groups)), {})
        return found

    def score(self, final: Snapshot) -> Scores:
        """The sums of the final model's scores on the held-out rows of every member that is connected."""
        task = self._seen.agreed.task
        layout = score_layout(task, self._secure, len(self._config.sites), self._private)
        told = [counts.told for counts in self._seen.counts.values()]
        facts: dict[str, Fact] = {}
        if self._private:
            facts["reach"] = self.first.number("score", max(reach(one["test"]) for one in told))
        bits = count_bits(told)
        if self._config.target is not None:
            layout = with_histograms(layout, task, bits)
            facts["count_bits"] = bits
        question = Message({"model": final.model}, facts)
        sums, summed = self._sum(Sum("score", "score", question, layout), list(self._seen.counts))
        values, scores = layout.values(sums), Scores()
        if self._private:
            rows = torch.stack([self._seen.counts[site].told["test"] for site in summed]).sum(0)
            nobody = Scored((), Tally.zeros((task.labels, task.groups)), {})
            return {
                "validation": nobody,
                "test": Scored(summed, made_whole(read_noisy_tally("test", values), rows), {}),
            }
        for part in ("validation", "test"):
            tally = read_tally(part, values)
            self._check_tally(part, tally, summed)
            scores[part] = Scored(summed, tally, {})
        if self._config.target is not None:
            counts = {site: self._seen.counts[site] for site in summed}
            self.histograms = HistogramSum.of_sums(read_histograms(values, task, layout.sites, bits), counts)
        return scores

    def count(self, asked: CountRequest, sites: Sequence[str]) -> Tensor:
        """Counts of rows, added up over exactly these sites: a search rests on sums over the same rows."""
        layout = counts_layout(asked.shape, len(self._config.sites))

        def upcoming() -> Sequence[str]:
            return sites if asked.following else ()

        asking = Sum("score", asked.purpose, asked.message, layout, 1, asked.following, upcoming, whole=True)
        rows = torch.from_numpy(layout.values(self._sum(asking, sites)[0])[COUNTS]).round().long()
        self._check(asked.sound(rows, asked.limit), "held-out")
        return rows

    def _sum(self, asking: Sum, wanted: Sequence[str]) -> tuple[Words, tuple[str, ...]]:
        """The summed words and their sites; if too few answer, every member is asked again while patience lasts.

        Once sites were asked to reveal a sum, only its sites are asked again: they would reveal no other.
        """
        members = list(wanted) if asking.whole else list(self._seen.counts)
        asked = [site for site in wanted if site in members]
        self.missed, self.quarantined = {}, {}
        for proof in self.first.proofs(asking.purpose):  # of a sum that was begun before this coordinator
            self._quarantine(Misdealing.from_text(proof).name, NO_SECRET)
        patience: Patience | None = None
        while True:
            revealed, before = self.first.summed(asking.purpose), len(self.quarantined)
            asked = [site for site in revealed or asked if site in members and site not in self.quarantined]
            found = self._attempt(asking, asked)
            if found is not None:
                return found
            if self.quarantined.keys() >= set(members) or (asking.whole and self.quarantined):
                raise UserError(self._nobody(), "The sites' answers could not be summed.")
            if len(self.quarantined) == before:  # otherwise those that are left may be enough
                patience = self._wait(patience, self._found, len(asked) if asking.whole else self._least(asked))
            asked = members

    def _nobody(self) -> str:
        reasons = " ".join(f"{site}: {reason}." for site, reason in self.quarantined.items())
        return (
            f"No site gave an answer that can be summed. {reasons} Everything up to the last whole round is kept: "
            f"widen the range in [secure] of federation.toml if numbers may be so large, or try "
            f"{self._config.algorithm.remedies}, and run again."
        )

    def _attempt(self, asking: Sum, asked: Sequence[str]) -> tuple[Words, tuple[str, ...]] | None:
        """One attempt at a sum; None if it failed."""
        least, names = len(asked) if asking.whole else self._least(asked), self._config.sites
        here = self._here(asked)
        self._found = len(here)
        if len(here) < least:
            return None
        gathering = self._gathered(here, asking.purpose)
        if self._few(gathering, gathering.offers, least):
            return None
        question = question_key(
            replace(asking.message, facts={**asking.message.facts, **self._about}),
            self._members.common,
            asking.layout.key,
            asking.largest,
        )
        masked = self._masked(gathering, asking, question)
        if self._few(gathering, masked, least):
            return None
        signatures = self._confirmed(gathering, masked.keys())
        if self._few(gathering, signatures, least):
            self._quarantine_wrong(gathering)
            return None
        told = self._revealed(gathering, masked.keys(), signatures, asking)
        try:
            total = gathering.unmasked(masked, told, asking.layout, question)
        except TooFew as error:
            self._found = len(told)
            self._say("training", f"The sum could not be unmasked: {error}.")
            self._prove(gathering)
            self._quarantine_wrong(gathering)
            return None
        for client, reason in gathering.wrong.items():
            self._say("training", f"The site {names[client]!r} was not needed to unmask the sum: {reason}.")
        summed = tuple(names[client] for client in sorted(masked))
        for site in summed:
            self.missed.pop(site, None)  # a site that was lost after it had masked is in the sum
        return total, summed

    def _prove(self, gathering: Aggregator) -> None:
        """Keep proofs of wrong dealing."""
        known = {Misdealing.from_text(text).client for text in self.first.proofs(gathering.purpose)}
        for dealer, proof in gathering.misdealt.items():
            if dealer not in known:
                self.first.prove(gathering.purpose, [proof.to_text()])

    def _offering(self, circles: Mapping[int, Circle]) -> dict[str, Message]:
        """Questions for an offer to each circle."""
        texts = {site: circles[client].to_text() for client, site in self._named(circles).items()}
        return {site: self._question(site, {"stage": "offer", "circle": text}) for site, text in texts.items()}

    def _quarantine_wrong(self, gathering: Aggregator) -> None:
        """Do not ask the sites again whose answers made an attempt fail."""
        for client, reason in gathering.wrong.items():
            self._quarantine(self._config.sites[client], reason)

    def _few(self, gathering: Aggregator, there: Collection[int], least: int) -> bool:
        self._found = len(there)
        return len(there) < least or not gathering.enough(there)

    def _here(self, asked: Sequence[str]) -> list[str]:
        """The sites that are connected; the others are missed."""
        gone = [site for site in asked if self._members.node(site) is None]
        for site in gone:
            self._miss(site)
        return [site for site in asked if site not in gone]

    def _gathered(self, here: Sequence[str], purpose: str) -> Aggregator:
        """An attempt with the offers of these sites: those that came with the last reveal, or new ones."""
        ready, self._ready = self._ready, None
        if ready is not None and ready.purpose == purpose and ready.offers.keys() == set(self._numbers(here)):
            return ready
        gathering = self._begun(here, purpose)
        circles = {client: gathering.circle(client) for client in gathering.keys}
        self._take_offers(gathering, self._answers("secure", self._offering(circles)))
        return gathering

    def _begun(self, sites: Sequence[str], purpose: str) -> Aggregator:
        """An attempt with those of these sites that send their public key."""
        unknown = [site for site in sites if site not in self._keys]
        answers = self._answers("secure", {site: self._question(site, {"stage": "key"}) for site in unknown})
        for site, answer in answers.items():
            key, signature = (str(answer.facts.get(name, "")) for name in ("key", "signature"))
            if valid_public_key(key) and signature:
                self._keys[site] = (site, key, signature)
            else:
                self._quarantine(site, "its answer lacks its public key")
        known = {self._config.sites.index(site): self._keys[site] for site in sites if site in self._keys}
        return Aggregator.of(self._seen.run, purpose, known, self._secure.neighbours, self._secure.threshold)

    def _take_offers(self, gathering: Aggregator, answers: Mapping[str, Message]) -> None:
        for site, answer in self._willing(gathering, answers).items():
            try:
                gathering.take(self._config.sites.index(site), Offer.from_text(str(answer.facts.get("offer", "null"))))
            except UserError as error:
                self._quarantine(site, str(error))

    def _willing(self, gathering: Aggregator, answers: Mapping[str, Message]) -> dict[str, Message]:
        """The answers of sites that could use the keys or offers of the others that were forwarded to them.

        The other sites are missed. A site whose key or offer most of its neighbours cannot use is quarantined, and the
        neighbours are asked again without it.
        """
        names, reasons, accusers = self._config.sites, dict[int, str](), dict[int, list[int]]()
        for site, answer in answers.items():
            if "unusable" in answer.facts:
                client = names.index(site)
                accusers[client], reasons[client] = (
                    unusable_clients(answer),
                    printable(str(answer.facts.get("refused", ""))),
                )
                self.missed[site] = f"failed: {reasons[client]}"
        for client, by in gathering.accused(accusers).items():
            self._quarantine(names[client], f"most of its neighbours cannot use its key or offer: {reasons[by]}")
            self._keys.pop(names[client], None)
        return {site: answer for site, answer in answers.items() if names.index(site) not in accusers}

    def _masked(self, gathering: Aggregator, asking: Sum, question: str) -> dict[int, Words]:
        """The masked words of the sites that made an offer and answer."""
        questions = {}
        message, layout = asking.message, asking.layout
        for client, site in self._named(gathering.offers).items():
            text = passed_text(gathering.attempt, gathering.passed(client), layout, asking.largest)
            questions[site] = self._for_site(replace(message, facts={**message.facts, "secure": text}), site)
        masked = {}
        for site, answer in self._willing(gathering, self._answers(asking.kind, questions)).items():
            words = words_of(answer.tensors.get("masked", {}))
            if "refused" in answer.facts:
                self._quarantine(site, printable(str(answer.facts["refused"])))
            elif not layout.fits(words):
                self._quarantine(site, "its masked answer has the wrong form")
            elif answer.facts.get("question") != question:
                self._quarantine(site, "its masks are for another question: use the same ffalm everywhere")
            else:
                masked[self._config.sites.index(site)] = words
        return masked

    def _confirmed(self, gathering: Aggregator, summed: Collection[int]) -> dict[int, str]:
        """By client, its signature of the list of who is in the sum; if no site dropped out, none is asked for."""
        inside, dropped = gathering.lists(summed)
        if not dropped:
            return dict.fromkeys(summed, "")
        lists = json.dumps({"summed": inside, "dropped": dropped})
        facts: dict[str, Fact] = {"stage": "confirm", "attempt": gathering.attempt, "lists": lists}
        questions = {site: self._question(site, facts) for site in self._named(summed).values()}
        answers = self._later_answers(gathering, questions)
        return {self._config.sites.index(site): str(one.facts.get("signature", "")) for site, one in answers.items()}

    def _revealed(
        self, gathering: Aggregator, summed: Collection[int], signatures: Mapping[int, str], asking: Sum
    ) -> dict[int, dict[int, bytes]]:
        """The shares that the sites in the sum reveal, and the offers for the next sum."""
        sites = tuple(self._named(summed).values())
        self.first.reveal(asking.purpose, sites)
        coming = [site for site in asking.upcoming() if self._members.node(site) is not None]
        following = None
        if coming and set(self._numbers(coming)) <= set(summed):
            following = self._begun(coming, asking.following)
        inside, dropped = gathering.lists(summed)
        signed = {client: signature for client, signature in signatures.items() if signature}
        lists = json.dumps({"summed": inside, "dropped": dropped, "signatures": signed})
        questions, proofs = {}, self.first.proofs(asking.purpose)
        for client, site in self._named(signatures).items():
            facts: dict[str, Fact] = {"stage": "reveal", "attempt": gathering.attempt, "last": not coming}
            facts["lists"] = lists
            if proofs:
                facts["misdealt"] = json.dumps(proofs)
            if following is not None and client in following.keys:
                facts["circle"] = following.circle(client).to_text()
            questions[site] = self._question(site, facts)
        answers = self._later_answers(gathering, questions)
        if self._failed >= questions.keys() and self.first.summed(asking.purpose) == sites:  # there was another sum
            self.first.refused(asking.purpose)
        if following is not None:
            offers = {site: answer for site, answer in answers.items() if "offer" in answer.facts}
            self._take_offers(following, offers)
            self._ready = following
        if not coming:
            self._keys.clear()
        return {self._config.sites.index(site): revealed_shares(answer) for site, answer in answers.items()}

    def _later_answers(self, gathering: Aggregator, questions: dict[str, Message]) -> dict[str, Message]:
        """The answers of sites whose masked numbers are in the sum, where they stay even if their site fails now."""
        answers = self._answers("secure", questions)
        for site in questions:
            if site in self.quarantined:
                gathering.wrong[self._config.sites.index(site)] = self.quarantined.pop(site)
        return answers

    def _answers(self, kind: Kind, messages: dict[str, Message]) -> dict[str, Message]:
        """The sites' answers. A site that does not answer may come back with a new key, so it is asked for it again."""
        answers = super()._answers(kind, messages)
        for site in messages.keys() - answers.keys():
            self._keys.pop(site, None)
        return answers

    def _question(self, site: str, facts: dict[str, Fact]) -> Message:
        return Message(facts={**facts, "terms": self._members.key(site)})

    def _least(self, asked: Sequence[str]) -> int:
        """The fewest sites in a sum: what the rules require, and enough to complete it."""
        circle = min(len(asked), self._secure.neighbours + 1)
        return max(min(self._config.rules.min_sites, len(asked)), needed(circle, self._secure.threshold, len(asked)))

    def _named(self, clients: Collection[int]) -> dict[int, str]:
        return {client: self._config.sites[client] for client in sorted(clients)}

    def _numbers(self, sites: Sequence[str]) -> list[int]:
        return [self._config.sites.index(site) for site in sites]

    def _check_tally(self, part: str, tally: Tally, summed: Sequence[str]) -> None:
        told = torch.stack([self._seen.counts[site].told[part] for site in summed]).sum(0)
        self._check(torch.equal(tally.count, told), part)

    def _check(self, right: bool, part: str) -> None:
        if not right:
            raise PublicError(
                f"The sites' answers add up to other {part} rows than they agreed to have, and secure sums do not show "
                "whose are wrong: let every site check that its file is the one it agreed with, and run again."
            )
