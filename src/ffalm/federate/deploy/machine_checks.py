"""The doctor's checks: versions, disk and limits; certificates, ports and clocks, with a connection like a site's."""

from __future__ import annotations

import datetime
import http.client
import resource
import shutil
import socket
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from ffalm.errors import UserError
from ffalm.federate.deploy.certificates import check_authority, read_certificate, server_key_matches, why_untrusted
from ffalm.federate.peer_versions import read_versions

Level = Literal["ok", "warn", "fail"]

_LITTLE_DISK, _NO_DISK = 2**30, 100 * 2**20
_FEW_FILES = 4096
_PACKAGES = ("ffalm", "flwr", "torch")
_SECONDS_TO_CONNECT = 5.0
_SOON = datetime.timedelta(days=30)
_AHEAD, _BEHIND = 5.0, 300.0  # seconds by which a site's clock may differ before its signatures are refused
_CLOSE = 3.0


@dataclass(frozen=True)
class Check:
    """What was checked, the result, and what to do if it is not ok."""

    name: str
    level: Level
    message: str


def versions(others: Path) -> Iterator[Check]:
    """The versions installed here and, from `versions.json` in a folder, on the other side."""
    yield Check("python", "ok", ".".join(map(str, sys.version_info[:3])))
    for package in _PACKAGES:
        try:
            yield Check(package, "ok", version(package))
        except PackageNotFoundError:
            yield Check(package, "fail", "not installed: pip install 'ffalm[flower]'")
    import ffalm

    for name, told in read_versions(others).items():
        if told == ffalm.__version__:
            yield Check(f"ffalm at {name}", "ok", told)
        else:
            yield Check(f"ffalm at {name}", "warn", f"{told}, here {ffalm.__version__}: install the same everywhere")


def disk(folder: Path) -> Check:
    """Whether there is room for checkpoints and logs."""
    free = shutil.disk_usage(folder).free
    told = f"{free / 2**30:.1f} GB free at {folder}"
    if free < _NO_DISK:
        return Check("disk", "fail", f"{told}: make room, at least 1 GB")
    return Check("disk", "warn", f"{told}: make room") if free < _LITTLE_DISK else Check("disk", "ok", told)


def writable(folder: Path) -> Check:
    """Whether this user can write the folder, in which logs and everything of a run are kept."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("writable", "ok", str(folder))
    except OSError as error:
        told = f"{folder} ({error.strerror}): run this as the user that owns the folder, on a disk that can be written"
        return Check("writable", "fail", told)


def file_limit() -> Check:
    """Whether enough connections may be open at once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= _FEW_FILES:
        return Check("file limit", "ok", "unlimited" if most == resource.RLIM_INFINITY else str(most))
    return Check(
        "file limit", "warn", f"{most} open files: raise it (LimitNOFILE= in systemd, ulimit -n) to {_FEW_FILES}"
    )


def proxy(host: str) -> Check:
    """Whether connections to the coordinator go through a proxy of the environment."""
    found = urllib.request.getproxies()
    named = [f"{scheme}_proxy" for scheme in ("https", "all") if found.get(scheme)]
    if not named:
        return Check("proxy", "ok", "none for HTTPS in the environment")
    if urllib.request.proxy_bypass(host):
        return Check("proxy", "ok", f"{', '.join(named)} is set, and no_proxy leaves {host} out")
    return Check(
        "proxy", "warn", f"{', '.join(named)} is set: connections to {host} go through it; add {host} to no_proxy if "
        "it intercepts TLS"
    )  # fmt: skip


def readable(path: Path, what: str) -> Check:
    """Whether this user can read a file or folder."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with open(path, "rb") as file:
                file.read(1)
    except OSError as error:
        return Check(
            what, "fail", f"{path}: {error.strerror}: check the path, and the rights of the user who runs this"
        )
    return Check(what, "ok", str(path))


def private(path: Path, called: str = "") -> Check:
    """Whether a secret is closed to other users."""
    name = f"permissions of {called or path.name}"
    if not path.exists():
        return Check(name, "fail", f"there is no {path}: restore it")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(name, "fail", f"{path} has mode {mode:04o}: chmod {'700' if path.is_dir() else '600'} it")
    return Check(name, "ok", f"{mode:04o}")


def authority(file: Path) -> Check:
    """Whether `ca.crt` is a certificate and valid now."""
    try:
        check_authority(file)
    except UserError as error:
        return Check("authority", "fail", str(error))
    return _dates(
        "authority", file, "make a new one by `ffalm federate rotate-key FEDERATION --coordinator --authority`"
    )


def server_certificate(folder: Path) -> Check:
    """Whether the coordinator's certificate is valid, signed by the authority, and of its key."""
    file = folder / "server.pem"
    again = "start the coordinator again, which makes new ones"
    if not server_key_matches(folder):
        return Check("server certificate", "fail", f"{file} does not belong to server.key or ca.crt: {again}")
    return _dates("server certificate", file, "start the coordinator again, which renews it")


def _dates(name: str, file: Path, remedy: str) -> Check:
    ends = read_certificate(file).not_valid_after_utc
    left, told = ends - datetime.datetime.now(datetime.UTC), f"valid until {ends:%Y-%m-%d}"
    if left < datetime.timedelta(0):
        return Check(name, "fail", f"{file} expired on {ends:%Y-%m-%d}: {remedy}")
    return Check(name, "warn", f"{told}: {remedy}") if left < _SOON else Check(name, "ok", told)


def port_free(host: str, port: int) -> Check:
    """Whether the coordinator could listen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return Check(
            f"port {port}",
            "fail",
            f"cannot be listened on ({error.strerror}): stop the process that does, or change it",
        )
    return Check(f"port {port}", "ok", "free; the coordinator is not running")


def connection(host: str, port: int, trusted: Path) -> list[Check]:
    """Connect by TLS as a site does, and compare the clocks."""
    name = f"port {port}"
    try:
        context = ssl.create_default_context(cafile=str(trusted))
        link = http.client.HTTPSConnection(host, port, timeout=_SECONDS_TO_CONNECT, context=context)
        before = datetime.datetime.now(datetime.UTC)
        link.request("HEAD", "/")
        date = link.getresponse().getheader("Date")
        after = datetime.datetime.now(datetime.UTC)
        link.close()
    except ssl.SSLCertVerificationError as error:
        return [Check(name, "fail", f"TLS: the certificate there {why_untrusted(error.verify_message)}")]
    except socket.gaierror:
        return [Check(name, "fail", f"the host {host} is unknown: check the address and this machine's DNS")]
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return [
            Check(
                name,
                "fail",
                f"no TLS connection to {host}:{port} ({reason}): is it running, and is a firewall in the way?",
            )
        ]
    return [Check(name, "ok", f"TLS to {host}:{port}"), clock(date, before, after)]


def clock(date: str | None, before: datetime.datetime, after: datetime.datetime) -> Check:
    """This machine's clock compared with the Date header of an answer that came between two moments."""
    try:
        theirs = parsedate_to_datetime(date or "").replace(tzinfo=datetime.UTC)
    except ValueError:
        return Check("clock", "warn", "the coordinator's answer has no date: compare the clocks yourself")
    ahead = max(0.0, (before - theirs).total_seconds() - 1)  # the header has whole seconds
    behind = max(0.0, (theirs - after).total_seconds())
    told = f"{ahead:.0f} s ahead of the coordinator's" if ahead else f"{behind:.0f} s behind the coordinator's"
    if ahead > _AHEAD or behind > _BEHIND:
        return Check("clock", "fail", f"{told}, so that this site's signatures are refused: set both by NTP")
    if max(ahead, behind) > _CLOSE:
        return Check("clock", "warn", f"{told}: set both by NTP")
    return Check("clock", "ok", "as the coordinator's")
