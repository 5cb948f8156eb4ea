"""Adding and removing sites, and replacing keys: in the folder, and at once where the coordinator is running.

A site that is removed stays in `sites` of federation.toml, since a client's number is its place there, and is listed in
`removed` too. Which keys are let in follows from the folder (`CoordinatorProcess.register_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffalm.errors import UserError, require, require_known
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.run_continuity import check_may_join
from ffalm.federate.deploy.certificates import ensure_server_certificate, write_authority
from ffalm.federate.deploy.creation import new_site
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder, share_public_keys, write_site_folder
from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.keys import PRIVATE, PUBLIC, fingerprint, write_key_pair
from ffalm.system import toml
from ffalm.system.file_locks import wait_for_lock
from ffalm.system.files import write_atomic

_SECONDS_TO_WAIT = 60.0


@dataclass(frozen=True)
class Change:
    """What was done, for the command to report."""

    site: str
    registered: bool  # whether a running coordinator has registered the new key, or unregistered the old one
    secure: bool  # whether the other sites need the new public key
    short: int = 0  # how many sites are too few for the rule `min_sites`


def add_site(folder: FederationFolder, name: str, public_key: Path | None = None) -> Change:
    """Make a site's folder and key, or take the public key that it made; a removed site comes back with a new key."""
    with _alone(folder):
        settings = folder.facts
        sites = folder.all_sites
        removed = [other for other in sites if other not in folder.sites]
        require(name not in sites or name in removed, f"The federation has a site {name} already: see `rotate-key`.")
        changed: dict[str, Any] = {"sites": sites if name in sites else [*sites, name]}
        if name in removed:
            changed["removed"] = [other for other in removed if other != name]
        config = _with_enough_sites({**settings, **changed}, folder)
        agreed = folder.run / "encoding.json"
        if name not in sites and agreed.exists():
            check_may_join(config, Agreement.load(agreed).task, folder.run)
        _require_new_key(folder, public_key)
        write_site_folder(folder, config, new_site(config, name))
        _take_key(folder, name, public_key)
        share_public_keys(folder, config.active)
        toml.set_values(folder.path / "federation.toml", changed)
        return Change(name, _registered(folder), config.rules.secure, _short(settings, len(config.active)))


def remove_site(folder: FederationFolder, name: str) -> Change:
    """Remove a site: its key is refused from now on. Its folder stays where it is.

    A site that was removed before is removed again: a command that was killed may not have unregistered its key.
    """
    with _alone(folder):
        settings = folder.facts
        left = [other for other in folder.sites if other != name]
        require_known("site", folder.all_sites, name)
        require(bool(left), f"{name} is the only site left, and a federation needs at least one.")
        removed = [other for other in folder.all_sites if other not in left]
        toml.set_values(folder.path / "federation.toml", {"removed": removed})
        secure = bool(settings.get("rules", {}).get("secure", False))
        return Change(name, _registered(folder), secure, _short(settings, len(left)))


def rotate_site_key(folder: FederationFolder, name: str, public_key: Path | None = None) -> Change:
    """Give a site a new key pair, or take the public key that it made; the old one is refused from now on."""
    with _alone(folder):
        require_known("site", folder.sites, name)
        _require_new_key(folder, public_key)
        if public_key is None:
            write_key_pair(folder.site(name), f"{name}@{folder.name}")
        _take_key(folder, name, public_key)
        share_public_keys(folder, folder.sites)
        return Change(name, _registered(folder), bool(folder.facts.get("rules", {}).get("secure", False)))


def rotate_own_key(site: SiteFolder) -> Path:
    """A new key pair in a site's own folder; the public key, which the coordinator must be sent."""
    running = SiteProcess(site).process.pid()
    require(running is None, f"The site {site.name} is running, as process {running}: stop it before its key changes.")
    write_key_pair(site.path, site.name)
    return site.path / PUBLIC


def rotate_server_key(folder: FederationFolder, authority: bool = False) -> None:
    """A new key and certificate of the coordinator.

    A certificate that the same authority signed stays good for sites until it expires; with a new `authority` sites
    refuse it once they have the new `ca.crt`.
    """
    with _alone(folder):
        running = CoordinatorProcess(folder).process.pid()
        require(running is None, f"The coordinator is running, as process {running}: stop it before its key changes.")
        own = folder.coordinator
        if authority:
            write_authority(own, folder.name)
            for name in folder.sites:
                if folder.site(name).is_dir():
                    write_atomic(folder.site(name) / "ca.crt", (own / "ca.crt").read_bytes())
        (own / "server.key").unlink(missing_ok=True)
        ensure_server_certificate(own, folder.address[0])


def _with_enough_sites(settings: Mapping[str, Any], folder: FederationFolder) -> FederationConfig:
    """Settings, checked except for the rule `min_sites`: several sites may have to be added, one by one."""
    count = len(set(settings["sites"]) - set(settings.get("removed", ())))
    rules: Mapping[str, Any] = settings.get("rules", {})
    enough = {**rules, "min_sites": min(int(rules.get("min_sites", 2)), count)}
    return FederationConfig.parse({**settings, "rules": enough}, folder.path)


def _short(settings: Mapping[str, Any], count: int) -> int:
    return max(0, int(settings.get("rules", {}).get("min_sites", 2)) - count)


@contextmanager
def _alone(folder: FederationFolder) -> Iterator[None]:
    """Keep other commands from changing the federation meanwhile."""
    with open(folder.coordinator / "members.lock", "a", encoding="utf-8") as file:
        if not wait_for_lock(file, _SECONDS_TO_WAIT):
            raise UserError(f"Another command is changing the sites of {folder.path}: wait until it has ended.")
        yield


def _require_new_key(folder: FederationFolder, public_key: Path | None) -> None:
    """Refuse a file without a public key, and a key that some site has or had."""
    if public_key is None:
        return
    new = fingerprint(public_key)
    for name in folder.all_sites:
        file = folder.site(name) / PUBLIC
        require(
            not file.is_file() or fingerprint(file) != new,
            f"The public key {public_key} is the one that the site {name} has: let the site make a new pair.",
        )


def _take_key(folder: FederationFolder, name: str, public_key: Path | None) -> None:
    """Put a key that the site made in place of ours, whose private half is deleted."""
    if public_key is not None:
        write_atomic(folder.site(name) / PUBLIC, public_key.read_bytes())
        (folder.site(name) / PRIVATE).unlink(missing_ok=True)


def _registered(folder: FederationFolder) -> bool:
    """Register keys with a running coordinator; otherwise it does so when it starts."""
    coordinator = CoordinatorProcess(folder)
    if coordinator.process.pid() is None:
        return False
    coordinator.require_running()  # one that is starting may have read the keys already
    if not coordinator.control.knows_keys:
        return False
    coordinator.register_keys()
    return True
