"""A site's three moves in an attempt to sum: offer, mask, reveal.

offer   makes a fresh pair of keys for masks and a fresh seed for the mask of its own, and shares both out among its
        circle (its neighbours and itself), each share sealed for who may hold it
mask    opens the shares it was sent, and adds to its words its own mask and one mask with each neighbour that made an
        offer: the one of the two with the smaller number adds it, the other subtracts it
reveal  tells, for each of its circle, either a share of the seed (of those whose words are in the sum) or a share of
        the private key (of those whose words are not, so that their neighbours' masks can be taken off), never both

All of it is arithmetic on plain values; the secrets between two moves are for the caller to keep.
"""

from __future__ import annotations

import json
import secrets as randomness
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ffalm.errors import PublicError, UserError, require_public
from ffalm.federate.secure.crypto import KEY_BYTES, KeyPair, digest, opened, sealed, stream
from ffalm.federate.secure.fixed_point import Words
from ffalm.federate.secure.shamir import split
from ffalm.settings import build

Shares = tuple[bytes, bytes]
"""A share of somebody's seed, and one of the private key of its masks."""


class _Text:
    """A dataclass that travels, or is kept, as JSON; bytes are written in hexadecimal."""

    what: ClassVar[str] = "message of a secure sum"

    def to_text(self) -> str:
        """As text for the wire, or for the site's own folder."""
        return json.dumps(asdict(self), default=bytes.hex)  # type: ignore[call-overload]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """What `to_text` wrote; raises `PublicError` where it is malformed."""
        try:
            values = json.loads(text)
        except ValueError:
            raise PublicError("A message of a secure sum cannot be read: use the same ffalm everywhere.") from None
        try:
            return build(cls, values, cls.what)
        except (UserError, ValueError, TypeError, AttributeError):
            raise PublicError(f"its {cls.what} is malformed") from None


@dataclass(frozen=True)
class Circle(_Text):
    """What a site is told when an attempt begins: its neighbours' public keys, and how many must answer to the end."""

    attempt: str  # a name that no other attempt has
    client: int
    keys: dict[int, str]  # hexadecimal, as everything that travels as text
    threshold: int


@dataclass(frozen=True)
class Offer(_Text):
    """What a site lets the others know: nothing here is secret but what is sealed."""

    what: ClassVar[str] = "offer for a secure sum"

    mask_key: str  # public
    sealed: dict[int, str]  # by neighbour, both shares
    digests: dict[int, tuple[str, str]]  # by holder, of both shares, so that a share told later can be checked


@dataclass(frozen=True)
class Passed:
    """What the coordinator passes on of one neighbour's offer to one site."""

    mask_key: str
    sealed: str
    digests: tuple[str, str]


@dataclass(frozen=True)
class Secrets(_Text):
    """What a site keeps of an attempt from move to move, for its own eyes."""

    circle: Circle
    seed: bytes = field(repr=False)
    mask_private: bytes = field(repr=False)
    held: dict[int, Shares] = field(repr=False)  # shares that this site holds, by whose secrets they are of
    mask_keys: dict[int, str] = field(default_factory=dict)  # public, of the neighbours that made an offer
    masked: bool = False


def offer(circle: Circle, own: KeyPair) -> tuple[Secrets, Offer]:
    """The first move; `own` is the pair with which this site seals and opens messages."""
    neighbours = sorted(circle.keys)
    holders = sorted([*neighbours, circle.client])
    require_public(
        2 * circle.threshold > len(holders) and 2 <= circle.threshold <= len(holders),
        f"A secure sum with {len(holders)} sites of which {circle.threshold} must answer does not hide what it should.",
    )
    seed, pair = randomness.token_bytes(KEY_BYTES), KeyPair.new()
    seeds, keys = (split(secret, holders, circle.threshold) for secret in (seed, pair.private))
    bodies = {
        other: sealed(
            _sealing(own, circle.keys[other], circle.attempt),
            seeds[other] + keys[other],
            _about(circle.attempt, circle.client, other),
        ).hex()
        for other in neighbours
    }
    marks = {holder: (digest(seeds[holder]), digest(keys[holder])) for holder in holders}
    mine = {circle.client: (seeds[circle.client], keys[circle.client])}
    return Secrets(circle, seed, pair.private, mine), Offer(pair.public.hex(), bodies, marks)


def accept(kept: Secrets, own: KeyPair, passed: Mapping[int, Passed]) -> Secrets:
    """The first half of the second move: open the shares of those that made an offer. There is no way back from it."""
    circle = kept.circle
    require_public(not kept.masked, "This secure sum has had this site's answer already: a mask hides one answer only.")
    require_public(
        passed.keys() <= circle.keys.keys() and len(passed) + 1 >= circle.threshold,
        f"Only {len(passed) + 1} of the {circle.threshold} sites that a secure sum needs made an offer.",
    )
    held = dict(kept.held)
    for other, body in passed.items():
        try:
            content = opened(
                _sealing(own, circle.keys[other], circle.attempt),
                bytes.fromhex(body.sealed),
                _about(circle.attempt, other, circle.client),
            )
        except (UserError, ValueError):
            raise PublicError(
                f"The shares of client {other} cannot be opened: they were changed on their way."
            ) from None
        shares = content[: len(content) // 2], content[len(content) // 2 :]
        require_public(
            (digest(shares[0]), digest(shares[1])) == tuple(body.digests),
            f"The shares of client {other} are not those that it announced.",
        )
        held[other] = shares
    return replace(kept, held=held, mask_keys={client: body.mask_key for client, body in passed.items()}, masked=True)


def mask(kept: Secrets, words: Words) -> Words:
    """The second half: the words as they may leave the site."""
    circle, pair = kept.circle, KeyPair.of(kept.mask_private)
    total = {name: value.copy() for name, value in words.items()}
    apply(total, own_mask(kept.seed, circle.attempt), add=True)
    for other, public in kept.mask_keys.items():
        apply(total, pair.shared(bytes.fromhex(public), mask_purpose(circle.attempt)), add=circle.client < other)
    return total


def reveal(kept: Secrets, summed: Collection[int], dropped: Collection[int]) -> dict[int, bytes]:
    """The last move: one share of each named site's secrets.

    A share of the seed of a site whose words are in the sum, a share of the key of one whose words are not. A list that
    would give both of one site, or calls this one dropped, or hides too few in the sum, is refused.
    """
    me, known = kept.circle.client, kept.held.keys()
    require_public(kept.masked, "This site has not masked anything for this secure sum.")
    fair = me in summed and not set(summed) & set(dropped) and set(summed) | set(dropped) == known
    require_public(fair, "The coordinator's list of who is in a secure sum and who is not cannot be true.")
    require_public(
        len(set(summed)) >= kept.circle.threshold,
        f"Only {len(set(summed))} of the {kept.circle.threshold} sites that a secure sum needs are in it.",
    )
    return {client: kept.held[client][0 if client in summed else 1] for client in sorted(known)}


def own_mask(seed: bytes, attempt: str) -> bytes:
    """The key of a site's own mask."""
    return bytes.fromhex(digest(f"ffalm own mask {attempt} ".encode() + seed))


def mask_purpose(attempt: str) -> str:
    """What two sites' key is used for when it makes their mask."""
    return f"mask {attempt}"


def apply(words: Words, key: bytes, add: bool) -> None:
    """Add or subtract the mask of a key, in place."""
    noise = stream(key, sum(value.nbytes for value in words.values()))
    first = 0
    for name in sorted(words):
        value = words[name]
        piece = np.frombuffer(noise, value.dtype.newbyteorder("<"), value.size, first)
        first += value.nbytes
        (np.add if add else np.subtract)(value, piece, out=value)


def _sealing(own: KeyPair, other: str, attempt: str) -> bytes:
    return own.shared(bytes.fromhex(other), f"shares {attempt}")


def _about(attempt: str, maker: int, holder: int) -> str:
    return f"{attempt} {maker} {holder}"
