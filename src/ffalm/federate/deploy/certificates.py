"""The federation's own certificate authority, the only one that sites trust.

`init` creates the authority. It signs the coordinator's certificate, which is renewed at each start when needed.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ffalm.errors import UserError, require
from ffalm.system.files import write_atomic, write_private

_AUTHORITY_LIFE = datetime.timedelta(days=3650)
_SERVER_LIFE = datetime.timedelta(days=397)
_RENEW_BEFORE = datetime.timedelta(days=60)
_CLOCKS_APART = datetime.timedelta(hours=1)  # a site's clock may be behind ours
_LOCAL = ("localhost", "127.0.0.1", "::1")
_OTHER = "is no certificate of this federation: ask the coordinator for ca.crt again"
_UNTRUSTED = {
    "certificate has expired": "has expired by this machine's clock: set the clock, or ask for a restart of the "
    "coordinator, which renews the certificate",
    "certificate is not yet valid": "is not valid yet by this machine's clock: set the clock by NTP",
    "certificate is not valid for": "is for another address than that in coordinator.toml: ask the coordinator for it",
}


def write_authority(folder: Path, name: str) -> None:
    """Create `ca.key`, which stays with the coordinator, and `ca.crt`, for every site."""
    key = ec.generate_private_key(ec.SECP256R1())
    title = _title(f"{name} federation")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _unsigned(title, title, key, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(folder / "ca.key", _key_text(key))
    write_atomic(folder / "ca.crt", certificate.public_bytes(Encoding.PEM))


def why_untrusted(said: str) -> str:
    """What is wrong with a coordinator's certificate, and what to do, from OpenSSL's message."""
    return next((words for sign, words in _UNTRUSTED.items() if sign in said), _OTHER)


def check_authority(file: Path) -> None:
    """Refuse a `ca.crt` that is no certificate, has expired or is not valid yet."""
    _check_dates(read_certificate(file), file)


def read_certificate(file: Path) -> x509.Certificate:
    """The certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"The file {file} holds no certificate: ask the coordinator for ca.crt again.") from None


def server_key_matches(folder: Path) -> bool:
    """Whether `server.pem` is signed by the authority in this folder, and of `server.key`."""
    return _server_certificate(folder) is not None


def ensure_server_certificate(folder: Path, host: str) -> None:
    """Make `server.key` and `server.pem` for this host, unless those there stay valid for a while."""
    if _still_good(folder, host):
        return
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _unsigned(_title(host), authority.subject, key, _SERVER_LIFE)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in _names(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_private(folder / "server.key", _key_text(key))
    write_atomic(folder / "server.pem", certificate.public_bytes(Encoding.PEM))


def _still_good(folder: Path, host: str) -> bool:
    """Whether the certificate there is signed by our authority, for this host, and far from its end."""
    certificate = _server_certificate(folder)
    if certificate is None:
        return False
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    lasts = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > _RENEW_BEFORE
    return lasts and list(names) == [_name(each) for each in _names(host)]


def _server_certificate(folder: Path) -> x509.Certificate | None:
    """The certificate there, if it is signed by our authority and of the key beside it."""
    if not (folder / "server.key").exists() or not (folder / "server.pem").exists():
        return None
    authority, _ = _authority(folder)
    try:
        certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        certificate.verify_directly_issued_by(authority)
        key = load_pem_private_key((folder / "server.key").read_bytes(), password=None)
    except (ValueError, TypeError, InvalidSignature):
        return None
    return certificate if key.public_key() == certificate.public_key() else None


def _authority(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"The federation's certificate authority in {folder} cannot be read ({error}): restore ca.key and ca.crt."
        ) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"The key {folder / 'ca.key'} is not the one that `ffalm federate init` made: restore it.")
    _check_dates(certificate, folder / "ca.crt")
    return certificate, key


def _check_dates(certificate: x509.Certificate, file: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    require(
        ends > now,
        f"The certificate {file} expired on {ends:%Y-%m-%d}: the coordinator must make a new authority (`ffalm "
        "federate rotate-key FEDERATION --coordinator --authority`) and send its ca.crt to every site.",
    )
    require(
        begins <= now, f"The certificate {file} is valid from {begins:%Y-%m-%d %H:%M} UTC on: set this machine's clock."
    )


def _names(host: str) -> tuple[str, ...]:
    """The names in the certificate: the host's, and those of the loopback interface."""
    return tuple(dict.fromkeys((host, *_LOCAL)))


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _title(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + life)
    )


def _key_text(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
