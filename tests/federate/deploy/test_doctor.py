"""The doctor finds what is wrong, and says what to do."""

from __future__ import annotations

import datetime
import errno
import resource
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterable
from email.utils import format_datetime
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

import ffalm
from ffalm.federate.deploy import certificates, machine_checks
from ffalm.federate.deploy.doctor import examine
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.machine_checks import Check, clock, connection
from ffalm.federate.keys import write_key_pair
from ffalm.federate.peer_versions import keep_versions

NOW = datetime.datetime(2026, 5, 4, 12, 0, 0, tzinfo=datetime.UTC)


def _bad(checks: Iterable[Check]) -> dict[str, tuple[str, str]]:
    return {check.name: (check.level, check.message) for check in checks if check.level != "ok"}


@pytest.fixture(autouse=True)
def _usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine_checks, "_LITTLE_DISK", 0)
    monkeypatch.setattr(machine_checks, "_NO_DISK", 0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 65536))


def test_a_new_federation_is_well(clinics: FederationFolder) -> None:
    assert _bad(examine(clinics)) == {}


def test_what_is_wrong_at_a_coordinator_is_found(clinics: FederationFolder) -> None:
    own = clinics.coordinator
    (own / "ca.key").chmod(0o640)
    (own / "server.pem").write_bytes((own / "ca.crt").read_bytes())
    (own / "format.json").unlink()
    (clinics.site("south") / "node.pub").write_text("nothing")
    keep_versions(clinics.run, {"north": "0.1\x1b[2J", "south": ffalm.__version__})
    clinics.run.chmod(0o755)
    with socket.create_server(clinics.address):
        bad = _bad(examine(clinics))
    assert {name: level for name, (level, _) in bad.items()} == {
        "ffalm at north": "warn",
        "format": "warn",
        "server certificate": "fail",
        f"port {clinics.address[1]}": "fail",
        "key of south": "fail",
        "permissions of ca.key": "fail",
        "permissions of run": "fail",
    }
    assert "chmod 600" in bad["permissions of ca.key"][1] and "upgrade" in bad["format"][1]
    assert "0.1?[2J" in bad["ffalm at north"][1]
    (clinics.path / "federation.toml").write_text("sites = 3\n")
    assert _bad(examine(clinics))["settings"][0] == "fail"


def test_what_is_wrong_at_a_site_is_found(clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteFolder.find(clinics.site("north"))
    (site.path / "data.csv").write_text("a,b\n1,x\n2,y\n")
    monkeypatch.setattr(machine_checks, "connection", lambda *_: [])
    assert _bad(examine(site)) == {}
    (site.path / "data.csv").write_text("a,b\n1,x\n,y\n")
    level, told = _bad(examine(site))["data columns"]
    assert level == "warn" and "'a' of 'data.csv' is empty in 1 of 2 rows, first in data row 2" in told
    assert 'missing = "mean"' in told
    (site.path / "data.csv").write_text("a,b\n007,x\n104,y\n")
    assert _bad(examine(site))["data columns"] == (
        "warn",
        "The column 'a' holds numbers with zeros before them, such as 007, which are read as quantities (7): list it "
        "in categorical if they are codes.",
    )
    (site.path / "data.csv").unlink()
    public = (site.path / "node.pub").read_bytes()
    write_key_pair(site.path, "north")
    (site.path / "node.pub").write_bytes(public)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    bad = _bad(examine(site))
    assert {name: level for name, (level, _) in bad.items()} == {"data file": "fail", "key": "fail", "proxy": "warn"}
    assert "no_proxy" in bad["proxy"][1] and "rotate-key" in bad["key"][1]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "proxy" not in _bad(examine(site))


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.writable(tmp_path).level == "ok"
    assert not list(tmp_path.iterdir())

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    found = machine_checks.writable(tmp_path)
    assert found.level == "fail" and f"{tmp_path} (Read-only file system): run this as" in found.message


def test_little_disk_and_few_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "_LITTLE_DISK", 2**60)
    assert machine_checks.disk(tmp_path).level == "warn"
    monkeypatch.setattr(machine_checks, "_NO_DISK", 2**60)
    assert machine_checks.disk(tmp_path).level == "fail"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert machine_checks.file_limit().level == "warn"


@pytest.mark.parametrize(
    ("ahead", "level"), [(0, "ok"), (0.9, "ok"), (5, "warn"), (30, "fail"), (-30, "warn"), (-400, "fail")]
)
def test_a_clock_that_signatures_would_be_refused_for_is_a_failure(ahead: float, level: str) -> None:
    ours = NOW + datetime.timedelta(seconds=ahead)
    assert clock(format_datetime(NOW, usegmt=True), ours, ours).level == level
    assert clock(None, ours, ours).level == "warn"


def test_a_site_sees_whether_the_coordinator_is_there_and_its_own(clinics: FederationFolder, tmp_path: Path) -> None:
    own, (host, port) = clinics.coordinator, clinics.address
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / "server.pem", own / "server.key")
    server = socket.create_server((host, port))

    def answer() -> None:
        for _ in range(2):
            link, _ = server.accept()
            try:
                with context.wrap_socket(link, server_side=True) as secure:
                    secure.recv(4096)
                    date = format_datetime(datetime.datetime.now(datetime.UTC), usegmt=True)
                    secure.sendall(f"HTTP/1.1 403 Forbidden\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
            except (OSError, ssl.SSLError):
                pass

    other = threading.Thread(target=answer)
    other.start()
    checks = connection(host, port, own / "ca.crt")
    assert [(check.name, check.level) for check in checks] == [(f"port {port}", "ok"), ("clock", "ok")]
    certificates.write_authority(tmp_path, "another")
    (check,) = connection(host, port, tmp_path / "ca.crt")
    assert check.level == "fail" and "ca.crt" in check.message
    other.join()
    server.close()
    (check,) = connection(host, port, own / "ca.crt")
    assert check.level == "fail" and "is it running" in check.message
