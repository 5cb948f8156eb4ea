"""Questions to the sites of a federation whose answers are only ever seen in sums.

The messages of a run, besides hello and agree:

    key     once for each site: its public key, for whoever seals a message for it
    offer   before the first round, and before one in which others take part than in the round before
    train   each round: offers are passed on, the model goes out, masked answers come back
    reveal  each round: shares that take the masks off, and with them the offers for the next round
    score   once, in the place of train; the last reveal makes the sites forget their secrets

So a round is two messages to each site, and three where somebody came or went.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Fact, Kind, Message
from ffalm.engines.remote.round_messages import train_message
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.site_clients import Asking, Scores
from ffalm.federate.disclosure import Scored
from ffalm.federate.secure.aggregator import Aggregator, TooFew
from ffalm.federate.secure.crypto import KEY_BYTES
from ffalm.federate.secure.fixed_point import VectorLayout, Words
from ffalm.federate.secure.histogram_payload import read_histograms, with_histograms
from ffalm.federate.secure.neighbours import needed as needed_of
from ffalm.federate.secure.payload import RoundSum, Uploads, read_tally, round_layout, round_sum, score_layout
from ffalm.federate.secure.protocol import Offer
from ffalm.federate.secure.secure_settings import Secure
from ffalm.federate.secure.secure_site import passed_text, words_of

Upcoming = Callable[[], Sequence[str]]
"""Who is to take part in the next sum; nobody where this is the last."""


@dataclass(eq=False, repr=False)
class SecureClients(Asking):
    """Sums over the members of a federation."""

    _keys: dict[str, bytes] = field(init=False, default_factory=dict)  # public, by site
    _found: int = field(init=False, default=0)  # how many answered the last question of the attempt under way
    _ready: Aggregator | None = field(init=False, default=None)  # whose offers came with the last reveal

    @property
    def summed(self) -> list[int]:
        """The clients in the last sum."""
        return self._numbers(self.scored.sites)

    @property
    def _secure(self) -> Secure:
        assert self._config.secure is not None
        return self._config.secure

    def round(
        self, chosen: Sequence[int], sent: Snapshot, uploads: Uploads, upcoming: Sequence[int] | None
    ) -> RoundSum:
        """What the sites' answers to a round add up to.

        `upcoming` are the clients of the round after, whose offers are asked for on the way; None of the last, after
        which everybody scores.
        """
        names, task = self._config.sites, self._members.agreed.task
        layout = round_layout(sent, uploads, task, self._secure, len(names))
        message = train_message(sent, self._config.algorithm, own_step=True)

        def after() -> Sequence[str]:
            return list(self._members.counts) if upcoming is None else [names[client] for client in upcoming]

        sums, summed = self._sum("train", [names[client] for client in chosen], message, layout, after)
        found = round_sum(layout, layout.values(sums), sent, uploads, len(summed), self._largest())
        self._check(int(self._members.rows()[self._numbers(summed)].sum()) == found.rows, "training")
        self._check_tally("validation", found.validation, summed)
        self.scored = Scored(summed, found.validation, {})
        return found

    def score(self, final: Snapshot) -> Scores:
        """The sums of the final model's scores on the held-out rows of every member that is here."""
        task = self._members.agreed.task
        layout = score_layout(task, self._secure, len(self._config.sites))
        if self._config.target is not None:
            layout = with_histograms(layout, task)
        question = Message({"model": final.model})
        sums, summed = self._sum("score", list(self._members.counts), question, layout, lambda: ())
        values, scores = layout.values(sums), Scores()
        for part in ("validation", "test"):
            tally = read_tally(part, values)
            self._check_tally(part, tally, summed)
            scores[part] = Scored(summed, tally, {})
        if self._config.target is not None:
            counts = {site: self._members.counts[site] for site in summed}
            self.histograms = HistogramSum.of_sums(read_histograms(values, task.favourable), counts)
        return scores

    def _sum(
        self, kind: Kind, wanted: Sequence[str], message: Message, layout: VectorLayout, upcoming: Upcoming
    ) -> tuple[Words, tuple[str, ...]]:
        """The summed words and whose they are; where too few answer, everybody is asked again as patience allows."""
        members = list(self._members.counts)
        asked = [site for site in wanted if site in members]
        self.missed, self.quarantined = {}, {}
        until: float | None = None
        while True:
            asked = [site for site in asked if site not in self.quarantined]
            found = self._attempt(kind, asked, message, layout, upcoming)
            if found is not None:
                return found
            if self.quarantined.keys() >= set(members):
                raise UserError(self._nobody())
            until = self._wait(until, self._found, self._least(asked))
            asked = members

    def _nobody(self) -> str:
        reasons = " ".join(f"{site}: {reason}." for site, reason in self.quarantined.items())
        return (
            f"No site gave an answer that can be summed. {reasons} Everything up to the last whole round is kept: "
            f"widen the range in [secure] of federation.toml if numbers may be so large, or try "
            f"{self._config.algorithm.remedies}, and run again."
        )

    def _attempt(
        self, kind: Kind, asked: Sequence[str], message: Message, layout: VectorLayout, upcoming: Upcoming
    ) -> tuple[Words, tuple[str, ...]] | None:
        """One attempt to sum; None where it came to nothing."""
        least, names = self._least(asked), self._config.sites
        here = self._here(asked)
        self._found = len(here)
        if len(here) < least:
            return None
        gathering = self._gathered(here)
        if self._few(gathering, gathering.offers, least):
            return None
        masked = self._masked(kind, gathering, message, layout)
        if self._few(gathering, masked, least):
            return None
        told = self._revealed(gathering, masked.keys(), upcoming)
        try:
            total = gathering.unmasked(masked, told, layout)
        except TooFew as error:
            self._found = len(told)
            self._say("training", f"The sum could not be unmasked: {error}.")
            for client, reason in gathering.wrong.items():
                self._quarantine(names[client], reason)
            return None
        for client, reason in gathering.wrong.items():
            self._say("training", f"The site {names[client]!r} was not needed to unmask the sum: {reason}.")
        return total, tuple(names[client] for client in sorted(masked))

    def _few(self, gathering: Aggregator, there: Collection[int], least: int) -> bool:
        self._found = len(there)
        return len(there) < least or not gathering.enough(there)

    def _here(self, asked: Sequence[str]) -> list[str]:
        """Those that are connected; the others are missed."""
        gone = [site for site in asked if self._members.node(site) is None]
        self.missed |= dict.fromkeys(gone, "lost: The site is not connected.")
        return [site for site in asked if site not in gone]

    def _gathered(self, here: Sequence[str]) -> Aggregator:
        """An attempt with the offers of these sites: those that came with the last reveal, or fresh ones."""
        ready, self._ready = self._ready, None
        if ready is not None and ready.offers.keys() == set(self._numbers(here)):
            return ready
        gathering = self._begun(here)
        circles = {site: gathering.circle(client).to_text() for client, site in self._named(gathering.keys).items()}
        questions = {site: self._question(site, {"stage": "offer", "circle": text}) for site, text in circles.items()}
        self._take_offers(gathering, self._answers("secure", questions))
        return gathering

    def _begun(self, sites: Sequence[str]) -> Aggregator:
        """An attempt with these sites, of those that say their public key."""
        answers = self._answers(
            "secure", {site: self._question(site, {"stage": "key"}) for site in self._keyless(sites)}
        )
        for site, answer in answers.items():
            try:
                key = bytes.fromhex(str(answer.facts["key"]))
            except (KeyError, ValueError):
                key = b""
            if len(key) == KEY_BYTES:
                self._keys[site] = key
            else:
                self._quarantine(site, "its answer lacks its public key")
        known = {self._config.sites.index(site): self._keys[site] for site in sites if site in self._keys}
        return Aggregator.of(known, self._secure.neighbours, self._secure.threshold)

    def _take_offers(self, gathering: Aggregator, answers: Mapping[str, Message]) -> None:
        for site, answer in answers.items():
            try:
                gathering.take(self._config.sites.index(site), Offer.from_text(str(answer.facts.get("offer", "null"))))
            except UserError as error:
                self._quarantine(site, str(error))

    def _masked(self, kind: Kind, gathering: Aggregator, message: Message, layout: VectorLayout) -> dict[int, Words]:
        """The masked words of those that made an offer and answer."""
        questions = {}
        for client, site in self._named(gathering.offers).items():
            text = passed_text(gathering.attempt, gathering.passed(client), layout, self._largest())
            questions[site] = self._for_site(replace(message, facts={**message.facts, "secure": text}), site)
        masked = {}
        for site, answer in self._answers(kind, questions).items():
            words = words_of(answer.tensors.get("masked", {}))
            if "refused" in answer.facts:
                self._quarantine(site, str(answer.facts["refused"]))
            elif layout.fits(words):
                masked[self._config.sites.index(site)] = words
            else:
                self._quarantine(site, "its masked answer has the wrong form")
        return masked

    def _revealed(
        self, gathering: Aggregator, summed: Collection[int], upcoming: Upcoming
    ) -> dict[int, dict[int, bytes]]:
        """The shares that those in the sum tell. Who fails here is in the sum all the same."""
        coming = [site for site in upcoming() if self._members.node(site) is not None]
        following = self._begun(coming) if coming and set(self._numbers(coming)) <= set(summed) else None
        questions = {}
        for client, site in self._named(summed).items():
            inside, dropped = gathering.lists(client, summed)
            facts: dict[str, Fact] = {"stage": "reveal", "attempt": gathering.attempt, "last": not coming}
            facts["lists"] = json.dumps({"summed": inside, "dropped": dropped})
            if following is not None and client in following.keys:
                facts["circle"] = following.circle(client).to_text()
            questions[site] = self._question(site, facts)
        answers = self._answers("secure", questions)
        for site in questions:
            self.missed.pop(site, None)
        if following is not None:
            offers = {site: answer for site, answer in answers.items() if "offer" in answer.facts}
            self._take_offers(following, offers)
            self._ready = following
        if not coming:
            self._keys.clear()
        return {self._config.sites.index(site): _shares(answer) for site, answer in answers.items()}

    def _answers(self, kind: Kind, messages: dict[str, Message]) -> dict[str, Message]:
        """What the sites answer. One that does not may come back with a new key, so it is asked for it again."""
        answers = super()._answers(kind, messages)
        for site in messages.keys() - answers.keys():
            self._keys.pop(site, None)
        return answers

    def _question(self, site: str, facts: dict[str, Fact]) -> Message:
        return Message(facts={**facts, "terms": self._members.key(site)})

    def _keyless(self, sites: Sequence[str]) -> list[str]:
        return [site for site in sites if site not in self._keys]

    def _least(self, asked: Sequence[str]) -> int:
        """How many must be in a sum: as the rules say, and never fewer than can be brought to its end."""
        circle = min(len(asked), self._secure.neighbours + 1)
        return max(min(self._config.rules.min_sites, len(asked)), needed_of(circle, self._secure.threshold))

    def _largest(self) -> int:
        return int(self._members.rows().sum((-1, -2)).max())

    def _named(self, clients: Collection[int]) -> dict[int, str]:
        return {client: self._config.sites[client] for client in sorted(clients)}

    def _numbers(self, sites: Sequence[str]) -> list[int]:
        return [self._config.sites.index(site) for site in sites]

    def _check_tally(self, part: str, tally: Tally, summed: Sequence[str]) -> None:
        told = torch.stack([self._members.counts[site].told[part] for site in summed]).sum(0)
        self._check(torch.equal(tally.count, told), part)

    def _check(self, right: bool, part: str) -> None:
        if not right:
            raise UserError(
                f"The sites' answers add up to other {part} rows than they agreed to have, and secure sums do not show "
                "whose are wrong: let every site check that its file is the one it agreed with, and run again."
            )


def _shares(answer: Message) -> dict[int, bytes]:
    """The shares in an answer; none where it makes no sense."""
    try:
        told = json.loads(str(answer.facts["shares"]))
        return {int(client): bytes.fromhex(share) for client, share in told.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
