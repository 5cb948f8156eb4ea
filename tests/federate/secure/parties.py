"""Sites and a coordinator that go through an attempt in memory, of whom any may drop out at any move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import PublicError
from ffalm.federate.secure.aggregator import Aggregator, TooFew
from ffalm.federate.secure.crypto import KeyPair, digest
from ffalm.federate.secure.fixed_point import Record, VectorLayout, Words
from ffalm.federate.secure.protocol import (
    FEWEST_SITES,
    ForwardedOffer,
    Secrets,
    accept,
    confirm,
    introduced,
    mask,
    offer,
    reveal,
)

Fate = Literal["stays", "offer", "mask", "reveal"]
"""The move at which a site drops out."""


def layout(sites: int, size: int = 6) -> VectorLayout:
    return VectorLayout(
        [Record("numbers", (size,), 8.0, "range", 32), Record("counts", (2,), 100.0, "range", whole=True)], sites
    )


@dataclass(frozen=True)
class PlainSigner:
    """Signatures that anyone could make, for tests of sums; real ones are slow."""

    name: str

    def sign(self, statement: str) -> str:
        return digest(f"{self.name}: {statement}".encode())

    def check(self, name: str, statement: str, signature: str) -> None:
        if signature != PlainSigner(name).sign(statement):
            raise PublicError(f"not signed by {name}")


@dataclass
class Attempt:
    """One attempt, and all that the coordinator sees of it."""

    plan: VectorLayout
    words: Mapping[int, Words]
    share: float = 0.6
    neighbours: int = 32
    secrets: dict[int, Secrets] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    late: dict[int, Words] = field(default_factory=dict)  # masked words that came after the list was made
    told: dict[int, dict[int, bytes]] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)  # the question of a site that is asked something else
    min_sites: dict[int, int] = field(default_factory=dict)  # fewest in a sum, where a site asks for more than two

    def __post_init__(self) -> None:
        self.pairs = {client: KeyPair.new() for client in self.words}
        self.signers = {client: PlainSigner(f"site-{client}") for client in self.words}
        keys = {
            client: (self.signers[client].name, *introduced("run", client, pair, self.signers[client]))
            for client, pair in self.pairs.items()
        }
        self.gathering = Aggregator.of("run", "train 1", keys, self.neighbours, self.share)
        self.signatures: dict[int, str] = {}

    def offers(self, fates: Mapping[int, Fate]) -> None:
        for client in self.words:
            if fates.get(client) != "offer":
                circle = self.gathering.circle(client)
                least = self.min_sites.get(client, FEWEST_SITES)
                self.secrets[client], made = offer(circle, self.pairs[client], self.signers[client], least)
                self.gathering.take(client, made)

    def masks(self, fates: Mapping[int, Fate]) -> None:
        for client in self.secrets:
            kept = self.accepted(client, self.gathering.passed(client))
            self.secrets[client] = kept
            into = self.late if fates.get(client) == "mask" else self.masked
            into[client] = mask(kept, self.words[client], self.asked.get(client, "question"))

    def accepted(self, client: int, passed: Mapping[int, ForwardedOffer]) -> Secrets:
        return accept(self.secrets[client], self.pairs[client], passed, self.signers[client])

    def reveals(self, fates: Mapping[int, Fate]) -> None:
        lists = self.gathering.lists(self.masked)
        there = [client for client in self.masked if fates.get(client) != "reveal"]
        if lists[1]:
            for client in there:
                self.secrets[client], self.signatures[client] = confirm(
                    self.secrets[client], *lists, self.signers[client]
                )
            if not self.gathering.enough(self.signatures):
                raise TooFew("confirmed")
        for client in there:
            self.told[client] = self.revealed(client, *lists)

    def revealed(self, client: int, summed: list[int], dropped: list[int]) -> dict[int, bytes]:
        return reveal(self.secrets[client], summed, dropped, self.signatures, self.signers[client])

    def total(self) -> Words:
        return self.gathering.unmasked(self.masked, self.told, self.plan, "question")

    def run(self, fates: Mapping[int, Fate]) -> Words:
        """All moves; `TooFew` where the coordinator must give up."""
        self.offers(fates)
        if not self.gathering.enough(self.gathering.offers):
            raise TooFew("offers")
        self.masks(fates)
        if not self.gathering.enough(self.masked):
            raise TooFew("masked")
        self.reveals(fates)
        return self.total()


def numbers(sites: int, seed: int = 0, size: int = 6) -> dict[int, dict[str, NDArray[np.float64]]]:
    draw = np.random.default_rng(seed)
    return {
        client: {"numbers": draw.uniform(-8, 8, size), "counts": draw.integers(-100, 101, 2).astype(np.float64)}
        for client in range(sites)
    }


def attempt(sites: int, share: float = 0.6, neighbours: int = 32, seed: int = 0) -> Attempt:
    plan = layout(sites)
    words = {client: plan.words(own) for client, own in numbers(sites, seed).items()}
    return Attempt(plan, words, share, neighbours)


def uniform(*arrays: NDArray[np.generic]) -> bool:
    """Whether bytes look drawn at random: Pearson's test on their counts, which chance fails once in a million."""
    content = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    expected = len(content) / 256
    chi_square = float(((np.bincount(content, minlength=256) - expected) ** 2 / expected).sum())
    return chi_square < 377  # the quantile 1 - 1e-6 of 255 degrees of freedom
