"""Keys, sealed messages and masks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federate.secure.parties import uniform

from ffalm.errors import UserError
from ffalm.federate.secure.crypto import KeyPair, opened, sealed, stream


def test_two_owners_of_keys_have_one_key_in_common_for_each_purpose() -> None:
    first, second, third = KeyPair.new(), KeyPair.new(), KeyPair.new()
    common = first.shared(second.public, "mask 1")
    assert common == second.shared(first.public, "mask 1")
    assert common != first.shared(second.public, "mask 2") and common != third.shared(second.public, "mask 1")
    assert KeyPair.of(first.private) == first


@pytest.mark.parametrize("key", [bytes(32), bytes(31), b""])
def test_a_public_key_that_is_none_is_refused(key: bytes) -> None:
    with pytest.raises(UserError, match="not a valid public key"):
        KeyPair.new().shared(key, "mask")


def test_a_sealed_message_opens_with_its_key_and_for_what_it_is_about_alone() -> None:
    key, other = bytes(range(32)), bytes(32)
    body = sealed(key, b"a secret", "1 to 2")
    assert opened(key, body, "1 to 2") == b"a secret" and b"secret" not in body
    assert sealed(key, b"a secret", "1 to 2") != body
    changed = body[:-1] + bytes([body[-1] ^ 1])
    for wrong in ((other, body, "1 to 2"), (key, body, "1 to 3"), (key, changed, "1 to 2"), (key, b"", "1 to 2")):
        with pytest.raises(UserError, match="changed on its way"):
            opened(*wrong)


def test_a_mask_is_the_same_for_a_key_and_looks_random() -> None:
    noise = stream(bytes(range(32)), 100_000)
    assert noise == stream(bytes(range(32)), 100_000) and noise[:50] == stream(bytes(range(32)), 50)
    assert uniform(np.frombuffer(noise, np.uint8)) and noise[:50] != stream(bytes(32), 50)


def test_the_mask_is_chacha20_as_published() -> None:
    """The keystream of the key 0 and the nonce 0: RFC 8439, appendix A.1, test vector 1."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a37"
    assert stream(bytes(32), 48).hex() == expected
