"""Who may pose as the coordinator, and as a site."""

from __future__ import annotations

import datetime
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="real federations need the extra 'flower'")

from cryptography import x509

from ffalm.errors import UserError
from ffalm.federate.deploy import certificates
from ffalm.federate.deploy.certificates import (
    check_authority,
    ensure_server_certificate,
    why_untrusted,
    write_authority,
)
from ffalm.federate.keys import fingerprint, read_private, write_key_pair


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    folder = tmp_path / "coordinator"
    write_authority(folder, "clinics")
    ensure_server_certificate(folder, "127.0.0.1")
    return folder


def _greeting(server: Path, trusted: Path, name: str) -> bytes:
    """What a client hears that trusts one authority and calls the server by a name."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server / "server.pem", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def answer() -> None:
            connection, _ = listener.accept()
            try:
                with serving.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"hello")
            except (ssl.SSLError, OSError):
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            calling = ssl.create_default_context(cafile=str(trusted))
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                calling.wrap_socket(plain, server_hostname=name) as secure,
            ):
                return secure.recv(5)
        finally:
            thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_site_that_trusts_the_authority_hears_the_coordinator(coordinator: Path, name: str) -> None:
    assert _greeting(coordinator, coordinator / "ca.crt", name) == b"hello"


def test_a_coordinator_of_another_authority_is_not_trusted(coordinator: Path, tmp_path: Path) -> None:
    write_authority(tmp_path / "other", "clinics")
    with pytest.raises(ssl.SSLCertVerificationError):
        _greeting(coordinator, tmp_path / "other" / "ca.crt", "127.0.0.1")


def test_a_coordinator_under_another_name_is_not_trusted(coordinator: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        _greeting(coordinator, coordinator / "ca.crt", "elsewhere.example")


def test_a_site_is_told_what_is_wrong_with_a_certificate(coordinator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(trusted: Path, name: str = "127.0.0.1") -> str:
        with pytest.raises(ssl.SSLCertVerificationError) as error:
            _greeting(coordinator, trusted, name)
        return why_untrusted(str(error.value))

    assert why(coordinator / "ca.crt", "elsewhere.example").startswith("is for another address")
    assert why(coordinator / "ca.crt", "127.0.0.9").startswith("is for another address")
    monkeypatch.setattr(certificates, "_SERVER_LIFE", datetime.timedelta(minutes=-1))
    ensure_server_certificate(coordinator, "localhost")
    assert why(coordinator / "ca.crt").startswith("has expired by this machine's clock")
    monkeypatch.undo()
    monkeypatch.setattr(certificates, "_CLOCKS_APART", -datetime.timedelta(hours=1))
    ensure_server_certificate(coordinator, "localhost")
    assert why(coordinator / "ca.crt").startswith("is not valid yet")
    monkeypatch.undo()
    write_authority(coordinator / "another", "clinics")
    assert why(coordinator / "another" / "ca.crt").startswith("is no certificate of this federation")


def test_a_good_certificate_is_kept_and_another_host_gets_a_new_one(coordinator: Path) -> None:
    before = (coordinator / "server.pem").read_bytes()
    ensure_server_certificate(coordinator, "127.0.0.1")
    assert (coordinator / "server.pem").read_bytes() == before
    ensure_server_certificate(coordinator, "fair.example")
    names = x509.load_pem_x509_certificate((coordinator / "server.pem").read_bytes()).extensions
    assert "fair.example" in str(names.get_extension_for_class(x509.SubjectAlternativeName).value)


def test_a_certificate_near_its_end_is_renewed(coordinator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = x509.load_pem_x509_certificate((coordinator / "server.pem").read_bytes())
    monkeypatch.setattr(certificates, "_RENEW_BEFORE", datetime.timedelta(days=400))
    ensure_server_certificate(coordinator, "127.0.0.1")
    after = x509.load_pem_x509_certificate((coordinator / "server.pem").read_bytes())
    assert after.serial_number != before.serial_number


def test_a_certificate_without_its_key_is_renewed(coordinator: Path) -> None:
    pem = (coordinator / "server.pem").read_bytes()
    (coordinator / "server.key").write_bytes((coordinator / "ca.key").read_bytes())
    ensure_server_certificate(coordinator, "fair.example")
    assert (coordinator / "server.pem").read_bytes() != pem
    pem = (coordinator / "server.pem").read_bytes()
    ensure_server_certificate(coordinator, "fair.example")
    assert (coordinator / "server.pem").read_bytes() == pem


def test_a_lost_authority_is_named(coordinator: Path) -> None:
    (coordinator / "ca.key").unlink()
    with pytest.raises(UserError, match=r"restore ca\.key"):
        ensure_server_certificate(coordinator, "127.0.0.1")


def test_only_their_owner_may_read_private_keys(coordinator: Path) -> None:
    write_key_pair(coordinator, "north")
    for name in ("ca.key", "server.key", "node.key"):
        assert (coordinator / name).stat().st_mode & 0o777 == 0o600


def test_a_key_is_known_again_whatever_its_comment(tmp_path: Path) -> None:
    write_key_pair(tmp_path, "north@clinics")
    public = tmp_path / "node.pub"
    before = fingerprint(public)
    kind, key, comment = public.read_text().split()
    assert comment == "north@clinics"
    public.write_text(f"{kind} {key}\n")
    assert fingerprint(public) == before
    write_key_pair(tmp_path, "north@clinics")
    assert fingerprint(public) != before


@pytest.mark.parametrize("content", [None, "nonsense", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"])
def test_a_file_that_is_no_public_key_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "node.pub").write_text(content)
    with pytest.raises(UserError, match=r"node\.pub"):
        fingerprint(tmp_path / "node.pub")


def test_a_key_of_a_kind_that_flower_does_not_take_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "node.pub").write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(UserError, match="ssh-keygen -t ecdsa"):
        fingerprint(tmp_path / "node.pub")


def test_keys_are_in_the_form_of_ssh_keygen(tmp_path: Path) -> None:
    write_key_pair(tmp_path, "north")
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(tmp_path / "node.key")], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert shown.stdout.split()[:2] == (tmp_path / "node.pub").read_text().split()[:2]


def test_a_file_that_is_no_private_key_of_ours_is_named(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    write_key_pair(tmp_path, "north")
    key = tmp_path / "node.key"
    read_private(key)
    other = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    for content in (b"", b"nonsense", other):
        key.write_bytes(content)
        with pytest.raises(UserError, match=r"node\.key holds no private key that Flower takes"):
            read_private(key)
    key.unlink()
    with pytest.raises(UserError, match=r"node\.key cannot be read"):
        read_private(key)


def test_an_authority_that_is_none_or_not_of_this_time_is_refused_at_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_authority(tmp_path, "clinics")
    check_authority(tmp_path / "ca.crt")
    (tmp_path / "other.crt").write_text("hello")
    with pytest.raises(UserError, match=r"other\.crt holds no certificate"):
        check_authority(tmp_path / "other.crt")
    monkeypatch.setattr(certificates, "_AUTHORITY_LIFE", datetime.timedelta(minutes=-1))
    write_authority(tmp_path, "clinics")
    with pytest.raises(UserError, match=r"ca\.crt expired on 20.*ffalm federate rotate-key .* --authority"):
        check_authority(tmp_path / "ca.crt")
    with pytest.raises(UserError, match=r"ca\.crt expired on 20"):
        ensure_server_certificate(tmp_path, "localhost")
    monkeypatch.undo()
    monkeypatch.setattr(certificates, "_CLOCKS_APART", -datetime.timedelta(hours=1))
    write_authority(tmp_path, "clinics")
    with pytest.raises(UserError, match="set this machine's clock"):
        check_authority(tmp_path / "ca.crt")
