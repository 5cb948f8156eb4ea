"""A site's key pair: by its private key a site shows who it is, by its public key the coordinator knows it again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ffalm.errors import UserError
from ffalm.files import write_private, write_whole

PRIVATE, PUBLIC = "node.key", "node.pub"


def write_key_pair(folder: Path, comment: str) -> None:
    """Make `node.key`, which never leaves the site, and `node.pub`, in the form that Flower and ssh-keygen share."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / PRIVATE, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_whole(folder / PUBLIC, public + f" {comment}\n".encode())


def fingerprint(path: Path) -> str:
    """The SHA-256 of a public key, without its comment; raises `UserError` for a file without one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

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
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def check_private(path: Path) -> None:
    """Refuse a private key that Flower could not use."""
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
