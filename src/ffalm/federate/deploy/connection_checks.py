"""Checks of certificates, ports and clocks, by looking and by connecting as a site does."""

from __future__ import annotations

import datetime
import http.client
import socket
import ssl
from email.utils import parsedate_to_datetime
from pathlib import Path

from ffalm.errors import UserError
from ffalm.federate.deploy.certificates import check_authority, read_certificate, server_key_matches
from ffalm.federate.deploy.machine_checks import Check

_SECONDS = 5.0
_SOON = datetime.timedelta(days=30)
_AHEAD, _BEHIND = 5.0, 300.0  # seconds by which a site's clock may differ before its signatures are refused
_CLOSE = 3.0


def authority(file: Path) -> Check:
    """Whether `ca.crt` is a certificate and valid now."""
    try:
        check_authority(file)
    except UserError as error:
        return Check("authority", "fail", str(error))
    return _dates("authority", file)


def server_certificate(folder: Path) -> Check:
    """Whether the coordinator's certificate is valid, by the authority, and of its key."""
    file = folder / "server.pem"
    again = "start the coordinator again, which makes new ones"
    if not server_key_matches(folder):
        return Check("server certificate", "fail", f"{file} and server.key do not fit, or not ca.crt: {again}")
    return _dates("server certificate", file)


def _dates(name: str, file: Path) -> Check:
    ends = read_certificate(file).not_valid_after_utc
    left, told = ends - datetime.datetime.now(datetime.UTC), f"valid until {ends:%Y-%m-%d}"
    if left < datetime.timedelta(0):
        return Check(name, "fail", f"{file} expired on {ends:%Y-%m-%d}: restart the coordinator")
    return Check(name, "warn", f"{told}: renew it soon") if left < _SOON else Check(name, "ok", told)


def port_free(host: str, port: int) -> Check:
    """Whether the coordinator could listen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return Check(f"port {port}", "fail", f"cannot be listened on ({error.strerror}): stop what does, or change it")
    return Check(f"port {port}", "ok", "free; the coordinator is not running")


def connection(host: str, port: int, trusted: Path) -> list[Check]:
    """Connect by TLS as a site does, and compare the clock with the other side's."""
    name = f"port {port}"
    try:
        context = ssl.create_default_context(cafile=str(trusted))
        link = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
        before = datetime.datetime.now(datetime.UTC)
        link.request("HEAD", "/")
        date = link.getresponse().getheader("Date")
        after = datetime.datetime.now(datetime.UTC)
        link.close()
    except ssl.SSLCertVerificationError as error:
        return [Check(name, "fail", f"TLS: {error.verify_message}: ask the coordinator for ca.crt; set both clocks")]
    except socket.gaierror:
        return [Check(name, "fail", f"{host} is not known: check the address and this machine's DNS")]
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return [Check(name, "fail", f"no TLS connection to {host}:{port} ({reason}): is it running, and let through?")]
    return [Check(name, "ok", f"TLS to {host}:{port}"), clock(date, before, after)]


def clock(date: str | None, before: datetime.datetime, after: datetime.datetime) -> Check:
    """This machine's clock against the Date header of an answer that came between two moments."""
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
