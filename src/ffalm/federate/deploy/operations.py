"""Starting and stopping a coordinator and its sites, with one sentence if that fails."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

from ffalm.errors import UserError, require
from ffalm.federate.deploy import fleet_gateway, site_node
from ffalm.federate.deploy.certificates import check_authority, ensure_server_certificate, why_untrusted
from ffalm.federate.deploy.control import Control
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.folder_format import upgrade
from ffalm.federate.deploy.process_log import logs_of
from ffalm.federate.deploy.processes import FlowerProcess, free_port
from ffalm.federate.deploy.superlink_state import erase_contents, registered_nodes
from ffalm.federate.keys import PRIVATE, PUBLIC, fingerprint, forget_secrets, read_private
from ffalm.system.files import read_json, write_atomic

#: The coordinator among the processes of a federation, and therefore no site's name.
COORDINATOR = "coordinator"

_SECONDS_TO_START = 180.0  # one that ends before is noticed at once
_SECONDS_TO_CONNECT = 5.0
_CALLS_AT_ONCE = 4
_LOOPBACK = "127.0.0.1"
_ON_LOOPBACK = {"0.0.0.0": _LOOPBACK, "::": "::1"}  # for a process that listens on all addresses
_SECONDS_BETWEEN_TRIES = 3.0
_SECONDS_TO_LET_IN = 45.0
_SECONDS_BETWEEN_LOOKS = 0.1
_UNKNOWN_KEY = "[code: 2004]"
_REFUSALS = {
    "[code: 2001]": "asks for keys that this site does not show: start it without --insecure",
    _UNKNOWN_KEY: f"does not know this site's key; either it is not registered (send {PUBLIC} to the coordinator), or "
    "a copy of this folder is connected already",
    site_node.REFUSED: "refuses this site's signature: set both clocks by NTP, or send it the site's "
    f"new {PUBLIC} if the key was replaced",
}
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


class Registered(TypedDict):
    """A registered key: its fingerprint and its node's number, None if that was unregistered, which is for good."""

    key: str
    node: int | None


class CoordinatorProcess:
    """The SuperLink of a federation folder."""

    def __init__(self, folder: FederationFolder) -> None:
        self.folder = folder
        self.process = FlowerProcess(folder.coordinator, "superlink")
        self.control = Control(self.process.home, folder.path)
        self._database = folder.coordinator / "state.db"
        self._registered = folder.coordinator / "registered.json"

    def start(self, listen: str | None = None, insecure: bool = False) -> None:
        """Start the SuperLink, register the sites' keys, and return when sites can connect."""
        port = self.folder.address[1]
        listen = listen or self.usual_listen
        running = self.process.pid()
        require(
            running is None,
            f"The coordinator of {self.folder.path} is running already, as process {running}: stop it first.",
        )
        self.process.clear()
        _require_free(listen, port, "change `address` in federation.toml and in each site's coordinator.toml")
        if self._metrics_port:
            _require_free(_LOOPBACK, self._metrics_port, "change `port` under [metrics] in federation.toml")
        self.folder.write_app()
        inner = free_port()
        if not self._database.exists():
            write_atomic(self._registered, "{}")  # a new database knows no keys
        upgrade(self.folder.path)
        erase_contents(self._database)
        self.control.forget()
        self.process.start(self._command(listen, port, inner, insecure), logs_of(self.folder.facts))
        up = self.process.wait(lambda _: _answers(listen, port) and _answers(_LOOPBACK, inner), _SECONDS_TO_START)
        if not up:
            self.process.stop()
            raise UserError(f"The coordinator did not start: see {self.process.log}.")
        self.control.configure(f"{_LOOPBACK}:{inner}", None if insecure else self.folder.coordinator / "ca.crt")
        if not insecure:
            try:
                self.register_keys()
            except BaseException:
                self.process.stop()
                raise

    @property
    def usual_listen(self) -> str:
        """The default address to listen on: loopback if sites call it there, otherwise all addresses."""
        host = self.folder.address[0]
        if host in ("localhost", "::1") or host.startswith("127."):
            return host
        return "::" if ":" in host else "0.0.0.0"

    def require_running(self) -> None:
        """Raise `UserError` if the coordinator is not running; wait for one that is starting."""
        deadline = time.monotonic() + _SECONDS_TO_START
        while self.process.pid() is not None and not self.control.configured and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        named = shlex.quote(str(self.folder.path))
        require(
            self.process.pid() is not None,
            f"The coordinator of {self.folder.path} is not running: start it with `ffalm federate coordinator {named}`"
            f", or everything on this machine with `ffalm federate run {named} --local`.",
        )

    def nodes(self) -> dict[str, int | None]:
        """The number of each registered site's node, if it is known."""
        return {site: entry["node"] for site, entry in (self._entries() or {}).items()}

    @property
    def inside(self) -> str:
        """The address at which this machine reaches it, if it listens on its default address."""
        return _ON_LOOPBACK.get(self.usual_listen, self.usual_listen)

    @property
    def _metrics_port(self) -> int:
        return int(self.folder.facts.get("metrics", {}).get("port", 0))

    def _command(self, listen: str, port: int, inner: int, insecure: bool) -> list[str]:
        own = self.folder.coordinator
        outer = f"[{listen}]:{port}" if ":" in listen else f"{listen}:{port}"
        networks = ",".join(str(one) for one in self.folder.facts.get("allow", ())) or "-"
        command = [sys.executable, "-P", "-m", fleet_gateway.__name__, outer, networks]
        command += [str(self._metrics_port), str(self.folder.path)]
        command += ["--host", _LOOPBACK, "--port", str(inner)]
        command += ["--database", str(self._database), "--disable-runtime-dependency-installation"]
        if insecure:
            return [*command, "--insecure"]
        ensure_server_certificate(own, self.folder.address[0])
        for flag, name in (("ca-certfile", "ca.crt"), ("certfile", "server.pem"), ("keyfile", "server.key")):
            command += [f"--ssl-{flag}", str(own / name)]
        return [*command, "--enable-supernode-auth"]

    def register_keys(self) -> None:
        """Register exactly the keys that are in the sites' folders now.

        The database knows which keys are registered; `registered.json` may lack some if a command was killed here.
        """
        require(
            self._entries() is not None,
            f"The file {self._registered} of registered keys is missing or damaged: restore it, or delete "
            f"{self._database} to register exactly the keys in the sites' folders.",
        )
        keys = {site: fingerprint(self.folder.site(site) / PUBLIC) for site in self.folder.sites}
        present = registered_nodes(self._database)
        for key in present.keys() - set(keys.values()):
            self.control.unregister(present[key])
        new = [self.folder.site(site) / PUBLIC for site, key in keys.items() if key not in present]
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as calls:
            list(calls.map(self.control.register, new))
        present = registered_nodes(self._database)
        entries: dict[str, Registered] = {site: {"key": key, "node": present.get(key)} for site, key in keys.items()}
        write_atomic(self._registered, json.dumps(entries, indent=2))

    def _entries(self) -> dict[str, Registered] | None:
        """The registered keys; None if they are not known."""
        try:
            entries: dict[str, Registered] = read_json(self._registered)
        except (OSError, ValueError):
            return None
        return entries if isinstance(entries, dict) else None


class SiteProcess:
    """The process that connects a site folder to its coordinator."""

    def __init__(self, folder: SiteFolder) -> None:
        self.folder = folder
        self.process = FlowerProcess(folder.path, "supernode")
        self._was_let_in = self.process.home / "let-in"
        self._given_up = threading.Event()

    def start(self, wait: float, insecure: bool = False) -> None:
        """Start the process and return when the coordinator has admitted it; raises if it is refused.

        A site that died a moment ago still counts as connected, and Flower refuses it with the message for unknown
        keys. So a site that was admitted before tries again for up to `wait` seconds. One that never was tries for a
        while: a coordinator that is starting listens before it has registered all keys.
        """
        running = self.process.pid()
        require(running is None, f"The site {self.folder.name} is running already, as process {running}.")
        upgrade(self.folder.path)
        command, deadline = self._command(insecure), time.monotonic() + wait
        patient = deadline  # until when a refused site tries again
        refused = ""  # the log of the last refused try; the deadline may cut the next one short
        self.process.clear()
        while True:
            self.process.start(command, self.folder.logs)
            self.process.wait(self._decided, deadline - time.monotonic())
            said, ended = self.process.said(), self.process.pid() is None
            if site_node.LET_IN in said:
                write_atomic(self._was_let_in, "")
                return
            if _UNKNOWN_KEY in said and not refused and not self._was_let_in.exists():
                patient = min(deadline, time.monotonic() + _SECONDS_TO_LET_IN)
            refused = said if _refusal(said) is not None else refused
            if _UNKNOWN_KEY not in said or time.monotonic() + _SECONDS_BETWEEN_TRIES > patient:
                break
            self.process.stop()
            if self._given_up.wait(_SECONDS_BETWEEN_TRIES):
                break
        self.process.stop()
        raise UserError(self._why(refused or said, ended, wait))

    def give_up(self) -> None:
        """Stop, and end all attempts in `start`."""
        self._given_up.set()
        self.process.stop()

    def _decided(self, said: str) -> bool:
        return site_node.LET_IN in said or _refusal(said) is not None or self._given_up.is_set()

    def _why(self, said: str, ended: bool, wait: float) -> str:
        """Why the site was not admitted, in one sentence."""
        name, where = self.folder.name, "the coordinator at {}:{}".format(*self.folder.address)
        refusal = _refusal(said)
        if refusal is not None:
            return f"The site {name} was not admitted: {where} {refusal}."
        if ended:
            return f"The site {name} could not be started: see {self.process.log}."
        return f"The site {name} cannot reach {where} within {wait:g} s: {_obstacle(*self.folder.address)}"

    def _command(self, insecure: bool) -> list[str]:
        own, (host, port) = self.folder.path, self.folder.address
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        command = [sys.executable, "-P", "-m", site_node.__name__, str(own.resolve()), address]
        if insecure:
            return [*command, "--insecure"]
        for name in ("ca.crt", PRIVATE):
            require((own / name).is_file(), f"The site folder {own} lacks {name}: ask the coordinator for it.")
        check_authority(own / "ca.crt")
        read_private(own / PRIVATE)
        return command


def processes_of(path: Path) -> dict[str, FlowerProcess]:
    """The processes of a federation or site folder on this machine, by name."""
    if (path / "site.toml").is_file():
        site = SiteProcess(SiteFolder.find(path))
        return {site.folder.name: site.process}
    folder = FederationFolder.find(path)
    sites = [name for name in folder.all_sites if (folder.site(name) / "site.toml").is_file()]
    found = {name: FlowerProcess(folder.site(name), "supernode") for name in sites}
    return {**found, COORDINATOR: CoordinatorProcess(folder).process}


def stop_all(processes: dict[str, FlowerProcess]) -> list[str]:
    """End these, sites before the coordinator; the names of those that were running.

    A site that could sign off is admitted again at once; otherwise the coordinator takes it for connected for up to a
    minute. Secrets of secure sums, which a site that missed the end of a run still has, are deleted.
    """
    last = [COORDINATOR] if COORDINATOR in processes else []
    sites = [who for who in processes if who not in last]
    with ThreadPoolExecutor(max(1, len(sites))) as stops:
        ended = dict(zip(sites, stops.map(lambda who: processes[who].stop(), sites), strict=True))
    for who in sites:
        forget_secrets(processes[who].home.parent)
    ended |= {who: processes[who].stop() for who in last}
    return [who for who in processes if ended[who]]


def _refusal(said: str) -> str | None:
    if _UNTRUSTED in said:
        return f"shows a certificate that {why_untrusted(said)}"
    return next((words for sign, words in _REFUSALS.items() if sign in said), None)


def why_unreachable(host: str, port: int) -> str | None:
    """Why this machine cannot reach a coordinator, in one sentence; None if something answers there."""
    return None if _answers(host, port) else _obstacle(host, port)


def _obstacle(host: str, port: int) -> str:
    """Why this machine cannot reach a coordinator that does not answer, and what to do."""
    proxies = urllib.request.getproxies_environment()
    named = [f"{scheme}_proxy" for scheme in ("https", "all") if proxies.get(scheme)]
    if named and not urllib.request.proxy_bypass(host):
        return (
            f"connections go through the proxy in the variable {named[0]}; it must not intercept TLS to "
            f"{host}:{port}, or add {host} to no_proxy."
        )
    try:
        socket.create_connection((host, port), timeout=_SECONDS_TO_CONNECT).close()
    except socket.gaierror:
        return f"the host {host} is unknown; check the address in coordinator.toml and this machine's DNS."
    except ConnectionRefusedError:
        return "nothing listens there; is the coordinator running, and is that its port (coordinator.toml)?"
    except OSError as error:
        return f"no connection ({error.strerror or error}); allow outgoing TCP to it in your firewall."
    return "something else listens there, or only one side uses --insecure."


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((_ON_LOOPBACK.get(host, host), port), timeout=1).close()
    except OSError:
        return False
    return True


def _require_free(host: str, port: int, otherwise: str) -> None:
    try:
        fleet_gateway.listener(host, port).close()
    except OSError as error:
        why = "The coordinator cannot listen on"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):  # EACCES: a port that only root may listen on
            first = "stop the process that does, or " if error.errno == errno.EADDRINUSE else ""
            raise UserError(f"{why} {host}:{port} ({os.strerror(error.errno)}): {first}{otherwise}.") from None
        raise UserError(f"{why} {host}, which is no address of this machine: name another by --listen.") from None
