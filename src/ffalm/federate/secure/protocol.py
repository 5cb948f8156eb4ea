"""A site's moves in an attempt at a sum: offer, mask, confirm, reveal.

offer   makes a fresh key pair for masks and a fresh seed for the site's own mask, and deals shares of the private key
        and the seed to its circle (its neighbours and itself), each share sealed for its holder
mask    opens the shares it was sent, and adds to its words its own mask and one mask with each neighbour that made an
        offer: the neighbour with the smaller number adds it, the other subtracts it. These masks depend on the
        question too, so that they cancel only among sites that were asked the same
confirm only if a site dropped out: signs, once, the list of who is in the sum and who is not
reveal  gives, for each site of its circle, either a share of the seed (if that site's words are in the sum) or a share
        of the private key (if they are not, so that its masks with its neighbours can be removed), never both; if a
        site dropped out, only once enough of its circle have signed the same list

Public keys and lists are signed with the sites' node keys over run, purpose and attempt, so that a coordinator cannot
forward keys of its own or send sites different lists. `min_sites`, the fewest sites in a sum that a site takes part in,
is signed too: its answer can be unmasked without its help, so the holders of its shares insist on that number as well.
A site counts itself and the neighbours whose offers it has checked, since a coordinator can make up any others.
Everything here is arithmetic on plain values; the caller keeps the secrets between two moves.
"""

from __future__ import annotations

import json
import secrets as randomness
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np

from ffalm.errors import PublicError, UserError, require_public
from ffalm.federate.keys import Signer
from ffalm.federate.secure.crypto import KEY_BYTES, KeyPair, digest, opened, sealed, stream, valid_public_key
from ffalm.federate.secure.fixed_point import Words
from ffalm.federate.secure.shamir import split
from ffalm.settings import build
from ffalm.system.files import parsed_json

T = TypeVar("T")

Shares = tuple[bytes, bytes]
"""A share of somebody's seed, and one of the private key of its masks."""

SignedKey = tuple[str, str, str]
"""A site's name, the public key for messages that are sealed for it, and its signature of both."""

Signatures = Mapping[int, str]
"""By client, its signature of a list."""

MOST_SITES = 2**20
"""In a sum; clients are numbered from 0."""

FEWEST_SITES = 2
"""In any sum: that of one site's numbers is these numbers."""


class Unusable(UserError):
    """What the coordinator forwarded as from the sites `clients` is not theirs, or cannot be used."""

    def __init__(self, errors: Mapping[int, UserError]) -> None:
        said = errors.values()
        super().__init__(" ".join(map(str, said)), " ".join(error.public for error in said))
        self.clients = tuple(errors)


class AsText:
    """A dataclass that is sent or stored as JSON, with bytes in hexadecimal."""

    what: ClassVar[str] = "message of a secure sum"

    def to_text(self) -> str:
        """The JSON text."""
        return json.dumps(asdict(self), default=bytes.hex)  # type: ignore[call-overload]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`; raises `PublicError` if the text is malformed."""
        try:
            values = parsed_json(text)
        except ValueError:
            raise PublicError("A message of a secure sum cannot be read: use the same ffalm everywhere.") from None
        try:
            return build(cls, values, cls.what)
        except (UserError, ValueError, TypeError, AttributeError):
            raise PublicError(f"its {cls.what} is malformed") from None


class About(Protocol):
    """Names an attempt."""

    @property
    def run(self) -> str:
        """The run."""

    @property
    def purpose(self) -> str:
        """What is summed: "train 3", "score"."""

    @property
    def attempt(self) -> str:
        """A name that no other attempt has."""


@dataclass(frozen=True)
class Circle(AsText):
    """What a site is sent when an attempt begins: its neighbours' public keys, and how many must answer to the end."""

    run: str
    purpose: str  # what is summed: "train 3", "score"
    attempt: str  # a name that no other attempt has
    client: int
    everyone: tuple[int, ...]  # all clients of the attempt, in any circle
    peers: dict[int, SignedKey]
    threshold: int

    def key(self, other: int) -> bytes:
        """A neighbour's public key, which `offer` has checked."""
        return bytes.fromhex(self.peers[other][1])


@dataclass(frozen=True)
class Dealing:
    """What a site announces about the shares it deals, so that they and its seed can be checked when revealed."""

    threshold: int  # how many shares give a secret
    seed: str  # its digest
    digests: dict[int, tuple[str, str]]  # by holder, of both shares

    @property
    def fingerprint(self) -> str:
        """What the dealer signs."""
        return digest(json.dumps([self.threshold, self.seed, sorted(self.digests.items())]).encode())


@dataclass(frozen=True)
class Offer(AsText):
    """What a site sends for the others: nothing here is secret except what is sealed."""

    what: ClassVar[str] = "offer for a secure sum"

    mask_key: str  # public
    min_sites: int  # fewest in a sum that this site takes part in
    dealing: Dealing
    signature: str  # of these
    sealed: dict[int, str]  # by neighbour, both shares


@dataclass(frozen=True)
class ForwardedOffer:
    """The part of one neighbour's offer that the coordinator forwards to one site."""

    mask_key: str
    min_sites: int
    dealing: str  # its fingerprint
    signature: str
    sealed: str
    digests: tuple[str, str]


@dataclass(frozen=True)
class Secrets(AsText):
    """What a site keeps to itself from one move of an attempt to the next."""

    circle: Circle
    seed: bytes = field(repr=False)
    mask_private: bytes = field(repr=False)
    held: dict[int, Shares] = field(repr=False)  # shares that this site holds, by the client that dealt them
    min_sites: dict[int, int]  # fewest in a sum, as this site and each neighbour that made an offer signed
    mask_keys: dict[int, str] = field(default_factory=dict)  # public, of the neighbours that made an offer
    masked: bool = False
    fewest: int = 0  # sites that share the noise under privacy
    confirmed: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # who is in the sum and who dropped out, as signed

    def vouched(self, clients: Collection[int]) -> int:
        """How many of these are this site and neighbours whose offers it has checked; others do not count."""
        return len(self.held.keys() & set(clients))


def introduced(run: str, client: int, own: KeyPair, signer: Signer) -> tuple[str, str]:
    """A site's public key for this run, and its signature."""
    key = own.public.hex()
    return key, signer.sign(_key_statement(run, client, signer.name, key))


def offer(circle: Circle, own: KeyPair, signer: Signer, min_sites: int = FEWEST_SITES) -> tuple[Secrets, Offer]:
    """The first move; `own` is the pair with which this site seals and opens messages.

    Raises `Unusable` if keys that were forwarded as neighbours' are not theirs.
    """
    neighbours = sorted(circle.peers)
    holders = sorted([*neighbours, circle.client])
    names = [name for name, _, _ in circle.peers.values()]
    everyone = set(circle.everyone)
    require_public(
        set(holders) <= everyone
        and all(0 <= client < MOST_SITES for client in everyone)  # the share of a client -1 would be the secret itself
        and len(everyone) == len(circle.everyone)
        and len({signer.name, *names}) == len(holders) == len(set(holders)),
        "The coordinator's list of who takes part in a secure sum cannot be true.",
    )

    def check(other: int) -> None:
        name, key, signature = circle.peers[other]
        signer.check(name, _key_statement(circle.run, other, name, key), signature)
        require_public(valid_public_key(key), f"The key of client {other} is not a valid public key.")

    _each(neighbours, check)
    require_public(
        2 * circle.threshold > len(holders) and 2 <= circle.threshold <= len(holders),
        f"A secure sum with {len(holders)} sites of which {circle.threshold} must answer does not hide what it should.",
    )
    seed, pair = randomness.token_bytes(KEY_BYTES), KeyPair.new()
    seeds, keys = (split(secret, holders, circle.threshold) for secret in (seed, pair.private))
    bodies = {
        other: sealed(
            _sealing(own, circle, other),
            seeds[other] + keys[other],
            _about(circle.attempt, circle.client, other),
        ).hex()
        for other in neighbours
    }
    digests = {holder: (digest(seeds[holder]), digest(keys[holder])) for holder in holders}
    dealing = Dealing(circle.threshold, digest(seed), digests)
    mine = {circle.client: (seeds[circle.client], keys[circle.client])}
    public = pair.public.hex()
    signature = signer.sign(offer_statement(circle, circle.client, public, min_sites, dealing.fingerprint))
    kept = Secrets(circle, seed, pair.private, mine, {circle.client: min_sites})
    return kept, Offer(public, min_sites, dealing, signature, bodies)


def accept(kept: Secrets, own: KeyPair, passed: Mapping[int, ForwardedOffer], signer: Signer) -> Secrets:
    """The first half of the second move: open the shares of those that made an offer. It cannot be repeated.

    Raises `Unusable` if some of the forwarded offers are not their sites', or cannot be used.
    """
    circle = kept.circle
    require_public(not kept.masked, "This site has already answered in this secure sum: a mask hides one answer only.")
    require_public(
        passed.keys() <= circle.peers.keys() and len(passed) + 1 >= circle.threshold,
        f"Only {len(passed) + 1} of the {circle.threshold} sites that a secure sum needs made an offer.",
    )

    def open_shares(other: int) -> Shares:
        body = passed[other]
        statement = offer_statement(circle, other, body.mask_key, body.min_sites, body.dealing)
        signer.check(circle.peers[other][0], statement, body.signature)
        require_public(valid_public_key(body.mask_key), f"The mask key of client {other} is not a valid public key.")
        try:
            content = opened(
                _sealing(own, circle, other),
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
        return shares

    return replace(
        kept,
        held=kept.held | _each(passed, open_shares),
        min_sites=kept.min_sites | {client: body.min_sites for client, body in passed.items()},
        mask_keys={client: body.mask_key for client, body in passed.items()},
        masked=True,
    )


def mask(kept: Secrets, words: Words, question: str) -> Words:
    """The second half: the masked words, in answer to the question with that fingerprint."""
    circle, pair = kept.circle, KeyPair.of(kept.mask_private)
    total = {name: value.copy() for name, value in words.items()}
    apply(total, own_mask(kept.seed, circle.attempt), add=True)
    for other, public in kept.mask_keys.items():
        key = pair.shared(bytes.fromhex(public), mask_purpose(circle, question))
        apply(total, key, add=circle.client < other)
    return total


def confirm(kept: Secrets, summed: Collection[int], dropped: Collection[int], signer: Signer) -> tuple[Secrets, str]:
    """The third move: sign the one list that this site accepts in this attempt."""
    lists = _checked_lists(kept, summed, dropped)
    return replace(kept, confirmed=lists), signer.sign(_list_statement(kept.circle, lists))


def reveal(
    kept: Secrets, summed: Collection[int], dropped: Collection[int], signatures: Signatures, signer: Signer
) -> dict[int, bytes]:
    """The last move: one share of the secrets of each of this site's circle.

    That is a share of the seed of a site whose words are in the sum, and of the private key of one whose words are not.
    A list is refused if it would give both of one site, names this site as dropped, or has fewer sites in the sum than
    one of them requires; and a list with drop-outs if fewer than `threshold` of the circle have signed it. A wrong
    signature does not count: it may be a dishonest site's, which must not stop the others.
    """
    circle, lists = kept.circle, _checked_lists(kept, summed, dropped)
    if lists[1]:
        names = {client: name for client, (name, _, _) in circle.peers.items()}
        signed, wrong = 1, list[str]()
        for client in lists[0]:
            if client in signatures and client in names:
                try:
                    signer.check(names[client], _list_statement(circle, lists), signatures[client])
                    signed += 1
                except UserError as error:
                    wrong.append(error.public)
        require_public(
            kept.confirmed is not None and signed >= circle.threshold,
            " ".join(["Too few sites have signed the list of who dropped out of a secure sum.", *wrong]),
        )
    return {client: kept.held[client][0 if client in summed else 1] for client in sorted(kept.held)}


def _checked_lists(
    kept: Secrets, summed: Collection[int], dropped: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sorted list, if it can be true and is the one that this site has signed, if it signed any."""
    circle, known = kept.circle, kept.held.keys()
    require_public(kept.masked, "This site has not masked anything for this secure sum.")
    inside, outside = set(summed), set(dropped)
    possible = circle.client in inside and not inside & outside and known <= inside | outside <= set(circle.everyone)
    possible = possible and (len(inside), len(outside)) == (len(summed), len(dropped))
    possible = possible and not inside & (circle.peers.keys() - known)  # nothing of theirs is masked with this site
    lists = tuple(sorted(inside)), tuple(sorted(outside))
    require_public(
        possible and kept.confirmed in (None, lists),
        "The coordinator's list of who is in a secure sum and who is not cannot be true.",
    )
    found = kept.vouched(inside)
    require_public(
        found >= circle.threshold,
        f"Only {found} of the {circle.threshold} sites that a secure sum needs are in it.",
    )
    least = max(kept.min_sites[client] for client in inside & known)
    require_public(
        found >= least,
        f"A site in this secure sum takes part in sums of at least {least} sites; this one is of {found}.",
    )
    return lists


def _each(clients: Iterable[int], use: Callable[[int], T]) -> dict[int, T]:
    """What `use` gives for each client; if it fails for some, `Unusable` names them."""
    found: dict[int, T] = {}
    errors: dict[int, UserError] = {}
    for client in clients:
        try:
            found[client] = use(client)
        except UserError as error:
            errors[client] = error
    if errors:
        raise Unusable(errors)
    return found


def own_mask(seed: bytes, attempt: str) -> bytes:
    """The key from which a site's own mask is made."""
    return bytes.fromhex(digest(f"ffalm own mask {attempt} ".encode() + seed))


def mask_purpose(circle: Circle, question: str) -> str:
    """The purpose of the key from which two sites make their mask; it depends on the question, and on who takes part.

    A coordinator could ask all sites but one something else, such as to train a model that learns nothing, and so get
    that site's answer as the sum. Then the masks do not cancel, and it gets noise. So it does if it tells sites of
    different attempts: who is whose neighbour follows from who takes part.
    """
    everyone = digest(json.dumps(sorted(circle.everyone)).encode())
    return f"mask {circle.attempt} {everyone} {question}"


def apply(words: Words, key: bytes, add: bool) -> None:
    """Add or subtract the mask of a key, in place."""
    noise = stream(key, sum(value.nbytes for value in words.values()))
    first = 0
    for name in sorted(words):
        value = words[name]
        piece = np.frombuffer(noise, value.dtype.newbyteorder("<"), value.size, first)
        first += value.nbytes
        (np.add if add else np.subtract)(value, piece, out=value)


def _sealing(own: KeyPair, circle: Circle, other: int) -> bytes:
    return own.shared(circle.key(other), f"shares {circle.attempt}")


def _about(attempt: str, dealer: int, holder: int) -> str:
    return f"{attempt} {dealer} {holder}"


def _key_statement(run: str, client: int, name: str, key: str) -> str:
    return json.dumps(["ffalm key", run, client, name, key])


def offer_statement(about: About, client: int, mask_key: str, min_sites: int, dealing: str) -> str:
    """What a site signs of its offer; `dealing` is the fingerprint of its dealing."""
    return json.dumps(["ffalm offer", about.run, about.purpose, about.attempt, client, mask_key, min_sites, dealing])


def _list_statement(circle: Circle, lists: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return json.dumps(["ffalm list", circle.run, circle.purpose, circle.attempt, *lists])
