"""Keys, sealed messages and masks: X25519, HKDF-SHA256, ChaCha20-Poly1305 and ChaCha20.

The package `cryptography` comes with the extra `flower` and is imported only where it is used.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from functools import cache

from ffalm.errors import PublicError

KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True)
class KeyPair:
    """A private key and the public key that goes with it."""

    private: bytes
    public: bytes

    @classmethod
    def new(cls) -> KeyPair:
        """A fresh pair."""
        return cls.of(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """The pair of a private key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    def shared(self, other: bytes, purpose: str) -> bytes:
        """The key that only the owners of the two pairs can compute; each purpose has its own."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            common = X25519PrivateKey.from_private_bytes(self.private).exchange(
                X25519PublicKey.from_public_bytes(other)
            )
        except ValueError:
            raise PublicError("The coordinator passed on something that is not a valid public key.") from None
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=f"ffalm {purpose}".encode()).derive(common)


def valid_public_key(text: str) -> bool:
    """Whether a text is a public key in hexadecimal, and not a point of low order, which gives no shared secret."""
    try:
        key = bytes.fromhex(text)
        _probe().shared(key, "check")
    except (ValueError, PublicError):
        return False
    return key.hex() == text


@cache
def _probe() -> KeyPair:
    """A pair that only serves to check public keys."""
    return KeyPair.new()


def sealed(key: bytes, content: bytes, about: str) -> bytes:
    """The content, encrypted and authenticated together with `about`, by ChaCha20-Poly1305."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about.encode())


def opened(key: bytes, content: bytes, about: str) -> bytes:
    """The content that was sealed; raises `PublicError` if anything was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], about.encode())
    except (InvalidTag, ValueError):
        raise PublicError("A sealed message was changed on its way.") from None


def stream(key: bytes, length: int) -> bytes:
    """Pseudorandom bytes from a key, which must not be used for a second stream."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(length))


def digest(content: bytes) -> str:
    """The SHA-256 digest, by which a secret that is revealed later can be checked."""
    return hashlib.sha256(content).hexdigest()
