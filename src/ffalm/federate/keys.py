"""A site's key pair, by which it identifies itself.

The coordinator admits sites with a registered key. Under secure aggregation the sites also sign what they send each
other, and know each other by the public keys in their own folders (`peers/NAME.pub`), not by what the coordinator
forwards.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ffalm.errors import PublicError, UserError
from ffalm.system.files import write_atomic, write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PRIVATE, PUBLIC, PEERS = "node.key", "node.pub", "peers"
SECRETS = ".secure"
"""The folder of a site's secrets between two moves of a secure sum."""


class Signer(Protocol):
    """Signs as one site, and checks the other sites' signatures."""

    @property
    def name(self) -> str:
        """The site's own name."""

    def sign(self, statement: str) -> str:
        """This site's signature, in hexadecimal."""

    def check(self, name: str, statement: str, signature: str) -> None:
        """Raise `PublicError` unless the site of that name signed the statement."""


@dataclass(frozen=True)
class NodeSigner:
    """Signs with the site's `node.key` and knows the others by the public keys in its folder `peers`."""

    folder: Path
    name: str

    def sign(self, statement: str) -> str:
        """ECDSA over SHA-384."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA384

        try:
            key = read_private(self.folder / PRIVATE)
        except UserError as error:
            raise UserError(
                str(error), f"The site {self.name!r} has no {PRIVATE} to sign with, which secure sums need."
            ) from None
        return key.sign(statement.encode(), ec.ECDSA(SHA384())).hex()

    def check(self, name: str, statement: str, signature: str) -> None:
        """With the key that this site's operator put into `peers`.

        The name comes from the coordinator, and must not lead to a file elsewhere.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA384

        from ffalm.federate.settings_files import check_name

        try:
            check_name("site", name)
        except UserError as error:
            raise PublicError(str(error)) from None
        try:
            key = read_public(self.folder / PEERS / f"{name}.pub")
        except UserError as error:
            raise UserError(
                f"{error} Get it from {name} itself.",
                f"The site {self.name!r} has no key of {name!r}: {name} must send it its {PUBLIC}, to be kept as "
                f"{PEERS}/{name}.pub.",
            ) from None
        try:
            key.verify(bytes.fromhex(signature), statement.encode(), ec.ECDSA(SHA384()))
        except (InvalidSignature, ValueError):
            raise PublicError(
                f"What the coordinator forwarded as from {name!r} is not signed by the key of {name} that "
                f"{self.name} has in {PEERS}/{name}.pub."
            ) from None


def write_key_pair(folder: Path, comment: str) -> None:
    """Make `node.key`, which never leaves the site, and `node.pub`, in the form that Flower and ssh-keygen share."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / PRIVATE, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomic(folder / PUBLIC, public + f" {comment}\n".encode())


def forget_secrets(folder: Path) -> None:
    """Delete a site's secrets for secure sums; it can take part again with new ones."""
    shutil.rmtree(folder / SECRETS, ignore_errors=True)


def fingerprint(path: Path) -> str:
    """The SHA-256 of a public key, without its comment; raises `UserError` for a file without one."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(read_public(path).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_public(path: Path) -> EllipticCurvePublicKey:
    """A site's public key; raises `UserError` for a file without one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no public key {path}: put the site's there.") from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"The public key {path} cannot be read: {error}.") from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise UserError(
            f"The public key {path} is of a kind that Flower does not take: use ssh-keygen -t ecdsa -b 384."
        )
    return key


def read_private(path: Path) -> EllipticCurvePrivateKey:
    """A site's private key; raises `UserError` for one that Flower could not use."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"The private key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(
            f"The file {path} holds no private key that Flower takes: make one without a password by "
            "ssh-keygen -t ecdsa -b 384, and send its public half to the coordinator."
        )
    return key
