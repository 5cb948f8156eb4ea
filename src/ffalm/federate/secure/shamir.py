"""Shamir's secret sharing: any `threshold` shares give the secret, fewer reveal nothing about it.

A secret is the value at 0 of a random polynomial over the integers modulo a prime; a share is its value elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ffalm.errors import PublicError

PRIME = 2**256 + 297  # the first above every secret of 32 bytes
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """One share for each holder, of which `threshold` are needed; holders are numbers from 0."""
    assert len(secret) == SECRET_BYTES
    assert 1 <= threshold <= len(set(holders)) == len(holders)
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _value(coefficients, holder + 1).to_bytes(SHARE_BYTES) for holder in holders}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret that these shares, by holder, give; raises `PublicError` if it is too large to be one.

    Most false shares give some other secret, which is not noticed here.
    """
    places = {holder + 1: int.from_bytes(share) for holder, share in shares.items()}
    total = 0
    for place, value in places.items():
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise PublicError("The shares of a secret do not fit together.")
    return total.to_bytes(SECRET_BYTES)


def _value(coefficients: Sequence[int], place: int) -> int:
    """The polynomial at a place, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value
