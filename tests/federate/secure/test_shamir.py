"""Secret sharing: enough shares give the secret, fewer fit every secret."""

from __future__ import annotations

import itertools
import secrets

import pytest

from ffalm.errors import UserError
from ffalm.federate.secure.shamir import PRIME, join, split


def test_any_three_of_five_shares_give_the_secret_back() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, [0, 3, 4, 8, 11], 3)
    for holders in itertools.combinations(shares, 3):
        assert join({holder: shares[holder] for holder in holders}) == secret
    assert join(shares) == secret


@pytest.mark.parametrize("secret", [bytes(32), bytes([255]) * 32])
def test_the_smallest_and_the_largest_secret_come_back(secret: bytes) -> None:
    assert join(split(secret, [0, 1], 2)) == secret
    assert join(split(secret, [5], 1)) == secret


def test_two_shares_of_a_secret_that_needs_three_fit_every_other_secret_as_well() -> None:
    shares = split(secrets.token_bytes(32), [0, 1, 2], 3)
    known = {holder: int.from_bytes(shares[holder]) for holder in (0, 1)}
    for other in (bytes(32), bytes([7]) * 32):
        # The polynomial a + b x + c x^2 with this value at 0 and the known values at 1 and 2, solved by hand.
        a = int.from_bytes(other)
        one, two = known[0] - a, known[1] - a
        c = (two - 2 * one) * pow(2, -1, PRIME) % PRIME
        b = (one - c) % PRIME
        third = (a + 3 * b + 9 * c) % PRIME
        assert join({0: shares[0], 1: shares[1], 2: third.to_bytes(33)}) == other


def test_shares_of_one_secret_differ_each_time() -> None:
    assert split(bytes(32), [0, 1], 2) != split(bytes(32), [0, 1], 2)


def test_shares_that_belong_to_no_secret_are_refused() -> None:
    with pytest.raises(UserError, match="do not fit together"):
        join({0: (PRIME - 1).to_bytes(33)})


def test_the_modulus_is_a_prime_above_every_secret() -> None:
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin's test
        value = pow(base, odd, PRIME)
        assert value in (1, PRIME - 1) or any(pow(value, 2**k, PRIME) == PRIME - 1 for k in range(1, twos))
