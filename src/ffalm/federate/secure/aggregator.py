"""The coordinator's side of an attempt: forward offers, add up masked words, remove the masks.

It only ever holds public keys, sealed shares, masked words and, at the end, the shares that remove masks.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ffalm.errors import PublicError, UserError, require
from ffalm.federate.secure.circles import needed, ring
from ffalm.federate.secure.crypto import KeyPair, digest, valid_public_key
from ffalm.federate.secure.fixed_point import VectorLayout, Words, added
from ffalm.federate.secure.misdealing import Misdealing, belong
from ffalm.federate.secure.protocol import (
    FEWEST_SITES,
    Circle,
    ForwardedOffer,
    Offer,
    SignedKey,
    apply,
    mask_purpose,
    own_mask,
)
from ffalm.federate.secure.shamir import join

Revealed = Mapping[int, Mapping[int, bytes]]
"""By the site that reveals them: its share of each site's secret."""

NO_SECRET = "the shares that it dealt belong to no secret"


class TooFew(Exception):
    """An attempt that cannot be completed: nothing is learned from it."""


@dataclass
class Aggregator:
    """One attempt at a sum, with its sites' public keys. It is used once."""

    run: str
    purpose: str
    keys: Mapping[int, SignedKey]
    neighbours: Mapping[int, tuple[int, ...]]
    threshold: float  # the share of a circle that must answer to the end
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))
    offers: dict[int, Offer] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)  # by client, what was wrong with its offer or shares
    misdealt: dict[int, Misdealing] = field(
        default_factory=dict
    )  # by client, proof that its shares belong to no secret

    @classmethod
    def of(cls, run: str, purpose: str, keys: Mapping[int, SignedKey], neighbours: int, threshold: float) -> Aggregator:
        """An attempt with these sites, in circles."""
        return cls(run, purpose, keys, ring(run, keys, neighbours), threshold)

    def circle(self, client: int) -> Circle:
        """What a site is sent at the beginning."""
        peers = {other: self.keys[other] for other in self.neighbours[client]}
        everyone = tuple(sorted(self.keys))
        return Circle(self.run, self.purpose, self.attempt, client, everyone, peers, self._needed(client))

    def take(self, client: int, offer: Offer) -> None:
        """Keep a site's offer; raises `UserError` if it is not made for its circle or no other site can use it."""
        holders = {client, *self.neighbours[client]}
        made_for = offer.dealing.digests.keys() == holders and offer.sealed.keys() == holders - {client}
        if not made_for or offer.dealing.threshold != self._needed(client):
            raise UserError("its offer for a secure sum is not made for its neighbours")
        require(valid_public_key(offer.mask_key), "the mask key in its offer for a secure sum is not a public key")
        require(
            FEWEST_SITES <= offer.min_sites <= len(holders),
            f"its offer for a secure sum asks for {offer.min_sites} sites in it, and its circle is of {len(holders)}",
        )
        self.offers[client] = offer

    def accused(self, accusers: Mapping[int, Collection[int]]) -> dict[int, int]:
        """The sites whose keys or offers more than half of their neighbours cannot use, each with one such neighbour.

        Fewer accusers, or a single one, may be lying themselves, may lack the other's key in their folder, or may have
        received something else than the others.
        """
        found: dict[int, int] = {}
        for client, near in self.neighbours.items():
            said = [other for other in near if client in accusers.get(other, ())]
            if 2 * len(said) > len(near) and len(said) > 1:
                found[client] = said[0]
        return found

    def passed(self, client: int) -> dict[int, ForwardedOffer]:
        """The part of its neighbours' offers that a site is sent."""
        found = {other: self.offers[other] for other in self.neighbours[client] if other in self.offers}
        return {
            other: ForwardedOffer(
                one.mask_key,
                one.min_sites,
                one.dealing.fingerprint,
                one.signature,
                one.sealed[client],
                one.dealing.digests[client],
            )
            for other, one in found.items()
        }

    def enough(self, there: Collection[int]) -> bool:
        """Whether these sites can complete the attempt: enough of the circle of each site that made an offer."""
        return len(there) >= 2 and all(
            len(self._within(client, there)) >= self._needed(client) for client in self.offers
        )

    def lists(self, summed: Collection[int]) -> tuple[list[int], list[int]]:
        """Who is in the sum, and who made an offer but is not."""
        return sorted(summed), sorted(self.offers.keys() - set(summed))

    def unmasked(self, masked: Mapping[int, Words], revealed: Revealed, layout: VectorLayout, question: str) -> Words:
        """The sum of the words, which answer the question with that fingerprint; raises `TooFew` if the shares do not
        suffice to remove the masks."""
        total = layout.empty()
        for words in masked.values():
            total = added(total, words)
        for client in masked:
            apply(total, own_mask(self._seed(client, revealed), self.attempt), add=False)
        for client in self.offers.keys() - masked.keys():
            self._remove_dropped(total, client, masked.keys(), self._private_key(client, revealed), question)
        return total

    def _seed(self, client: int, revealed: Revealed) -> bytes:
        """The seed of a site's own mask; if its shares do not give the seed that it announced, the site is named."""
        shares, offer = self._valid_shares(client, revealed, kind=0), self.offers[client]
        if not belong(shares, offer.dealing):
            self.wrong[client] = NO_SECRET
            about = self.run, self.purpose, self.attempt, client, self.keys[client][0]
            self.misdealt[client] = Misdealing(
                *about, offer.mask_key, offer.min_sites, offer.dealing, offer.signature, shares
            )
            raise TooFew(f"the shares of client {client} do not fit together")
        return join(shares)

    def _remove_dropped(
        self, total: Words, client: int, summed: Collection[int], private: bytes, question: str
    ) -> None:
        """Remove the masks that a site which dropped out shares with those in the sum."""
        pair = KeyPair.of(private)
        if pair.public.hex() != self.offers[client].mask_key:
            self.wrong[client] = "the shares that it dealt do not give its key"
            raise TooFew(f"the shares of client {client} do not give its key")
        for other in self.neighbours[client]:
            if other in summed:
                key = pair.shared(
                    bytes.fromhex(self.offers[other].mask_key), mask_purpose(self.circle(client), question)
                )
                apply(total, key, add=other > client)

    def _private_key(self, client: int, revealed: Revealed) -> bytes:
        """The private mask key of a site that dropped out; if its shares belong to no key, the site is named."""
        try:
            return join(self._valid_shares(client, revealed, kind=1))
        except PublicError:
            self.wrong[client] = NO_SECRET
            raise TooFew(f"the shares of client {client} do not fit together") from None

    def _valid_shares(self, client: int, revealed: Revealed, kind: int) -> dict[int, bytes]:
        """As many shares of a site's secret as are needed, all as the site announced them. Other shares are not used,
        and the sites that revealed them are named."""
        valid: dict[int, bytes] = {}
        for holder in self._within(client, revealed):
            share = revealed[holder].get(client)
            if share is None:
                self.wrong[holder] = f"it revealed no share of client {client}"
            elif digest(share) == self.offers[client].dealing.digests[holder][kind]:
                valid[holder] = share
            else:
                self.wrong[holder] = f"it revealed a share of client {client} that is not the one it was given"
        lowest = self._needed(client)
        if len(valid) < lowest:
            raise TooFew(f"only {len(valid)} of the {lowest} shares of client {client} were revealed")
        return dict(list(valid.items())[:lowest])

    def _within(self, client: int, there: Collection[int]) -> list[int]:
        return [other for other in sorted({client, *self.neighbours[client]}) if other in there]

    def _needed(self, client: int) -> int:
        return needed(len(self.neighbours[client]) + 1, self.threshold, len(self.keys))
