"""The federation folder, which `ffalm federate init` writes and every other command reads.

NAME/federation.toml   the settings
NAME/coordinator/      certificates, the coordinator's database, its processes' logs, and the Flower app (app/)
NAME/run/              the run: history, checkpoints, model, result
NAME/audits/           the results of audits, one folder each
NAME/sites/SITE/       what is handed to a site: site.toml, its key pair, ca.crt, the other sites' public keys (peers/),
                       coordinator.toml, INSTRUCTIONS.md
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.errors import UserError, require
from ffalm.federate.deploy.folder_format import write_format
from ffalm.federate.deploy.process_log import logs_of
from ffalm.system import toml
from ffalm.system.files import unfinished, write_atomic

if TYPE_CHECKING:
    from ffalm.federate.federation_config import FederationConfig, SiteConfig
    from ffalm.federate.service_settings import Logs


@dataclass(frozen=True)
class FederationFolder:
    """The coordinator's side of a federation on disk."""

    path: Path
    audit: str = ""  # of an audit, its folder within this one

    @classmethod
    def find(cls, path: Path) -> FederationFolder:
        """The federation folder at this path, by its absolute name."""
        require(path.is_dir(), f"There is no federation folder {path}: make one with `ffalm federate init`.")
        require(
            (path / "federation.toml").is_file(),
            f"The folder {path} holds no federation.toml: name the folder that `ffalm federate init` made.",
        )
        return cls(path.resolve())

    @property
    def coordinator(self) -> Path:
        """All that only the coordinator has."""
        return self.path / "coordinator"

    @property
    def app(self) -> Path:
        """The Flower app that a run submits."""
        return self.coordinator / "app"

    @property
    def run(self) -> Path:
        """The folder of the run, or of the audit."""
        return self.path / (self.audit or "run")

    def new_audit(self) -> FederationFolder:
        """The same federation with a new folder for an audit."""
        for number in itertools.count(1):
            place = self.path / "audits" / str(number)
            with suppress(FileExistsError):
                place.parent.mkdir(mode=0o700, exist_ok=True)
                place.mkdir(mode=0o700)
                break
        return replace(self, audit=f"audits/{number}")

    @property
    def name(self) -> str:
        """The federation's name."""
        return str(self.facts.get("name", self.path.name))

    def site(self, name: str) -> Path:
        """The folder of a site."""
        return self.path / "sites" / name

    @property
    def facts(self) -> dict[str, Any]:
        """The settings in federation.toml, read without the cost of checking them: names, address, rounds."""
        return toml.read(self.path / "federation.toml")

    @property
    def sites(self) -> list[str]:
        """The names, in their order, of the sites that have not been removed."""
        return [name for name in self.all_sites if name not in _names(self.facts, "removed")]

    @property
    def all_sites(self) -> list[str]:
        """The same, including those that have been removed."""
        return _names(self.facts, "sites")

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that sites call."""
        return host_and_port(str(self.facts.get("address", "")), self.path / "federation.toml")

    def set_target(self, target: str) -> None:
        """Write a fairness target into federation.toml, the rest of which stays as it is; "none" takes it away.

        Refused where the run has begun with another.
        """
        from ffalm.federate.federation_config import FederationConfig

        file, begun = self.path / "federation.toml", self.run / "config.toml"
        settings = toml.read(file)
        wanted = FederationConfig.parse({**settings, "target": target}, self.path).target
        before = toml.read(begun).get("target", "none") if begun.exists() else None
        require(
            before in (None, wanted or "none"),
            f"The run in {self.run} began with the target {before}: leave out --target, or move that folder away to "
            "start a new run.",
        )
        if FederationConfig.parse(settings, self.path).target != wanted:
            toml.set_values(file, {"target": wanted})

    def write_app(self) -> None:
        """Write the Flower app: two names for Flower to import, and where this folder is now."""
        app = {
            "project": {
                "name": "ffalm-federation",
                "version": "1.0.0",
                "description": "A federation of ffalm",  # Flower warns where there is none
                "license": "Apache-2.0",
                "dependencies": [],
            },
            "tool": {
                "flwr": {
                    "app": {
                        "publisher": "ffalm",
                        "components": {
                            "serverapp": "ffalm.federate.deploy.federation_apps:server",
                            "clientapp": "ffalm.federate.deploy.federation_apps:client",
                        },
                        "config": {"folder": str(self.path), **({"audit": self.audit} if self.audit else {})},
                    }
                }
            },
        }
        write_atomic(self.app / "pyproject.toml", toml.dumps(app))


@dataclass(frozen=True)
class SiteFolder:
    """A site's side: the folder it was handed, with its own data named in site.toml."""

    path: Path

    @classmethod
    def find(cls, path: Path) -> SiteFolder:
        """The site folder at this path, by its absolute name."""
        require(path.is_dir(), f"There is no site folder {path}: name the folder that the coordinator handed you.")
        for name in ("site.toml", "coordinator.toml"):
            require(
                (path / name).is_file(),
                f"The folder {path} holds no {name}: name a folder sites/SITE that `ffalm federate init` made.",
            )
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The site's name in the federation."""
        return str(toml.read(self.path / "site.toml").get("name", self.path.name))

    @property
    def logs(self) -> Logs:
        """How the site's log is rotated."""
        return logs_of(toml.read(self.path / "site.toml"))

    @property
    def address(self) -> tuple[str, int]:
        """The coordinator's host and port."""
        file = self.path / "coordinator.toml"
        return host_and_port(str(toml.read(file).get("address", "")), file)


def new_folder(path: Path) -> tuple[Path, Path]:
    """The absolute path of a federation to be written, and of a hidden folder beside it to write it in first."""
    require(
        not path.exists() or (path.is_dir() and not any(path.iterdir())),
        f"{path} exists already, and a federation is never written over: choose another name or remove it.",
    )
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, unfinished(path)


def create(
    path: Path, config: FederationConfig, sites: list[SiteConfig], fill: Callable[[Path], None] | None = None
) -> FederationFolder:
    """Write a new federation folder, whole or not at all; `fill` puts more into the site folders.

    Everything is made in a hidden folder beside and renamed, so that a kill leaves no half federation.
    """
    path, beside = new_folder(path)
    try:
        _write(FederationFolder(beside), config, sites)
        if fill is not None:
            fill(beside / "sites")
        beside.replace(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    folder = FederationFolder(path)
    folder.write_app()
    return folder


def _write(folder: FederationFolder, config: FederationConfig, sites: list[SiteConfig]) -> None:
    from ffalm.federate.deploy.certificates import ensure_server_certificate, write_authority

    folder.coordinator.mkdir(parents=True, mode=0o700)
    config.write(folder.path / "federation.toml")
    write_authority(folder.coordinator, config.name)
    ensure_server_certificate(folder.coordinator, config.address.rpartition(":")[0].strip("[]"))
    for site in sites:
        write_site_folder(folder, config, site)
    share_public_keys(folder, [site.name for site in sites])
    write_format(folder.path)


def write_site_folder(folder: FederationFolder, config: FederationConfig, site: SiteConfig) -> None:
    """Write what is handed to a site, with a new key pair; what its operator has set in `site.toml` stays."""
    from ffalm.federate.deploy.instructions import page
    from ffalm.federate.keys import write_key_pair

    own = folder.site(site.name)
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (own / "site.toml").exists():
        site.write(own / "site.toml")
    write_atomic(own / "coordinator.toml", toml.dumps({"federation": config.name, "address": config.address}))
    write_atomic(own / "ca.crt", (folder.coordinator / "ca.crt").read_bytes())
    write_key_pair(own, f"{site.name}@{config.name}")
    write_atomic(own / "INSTRUCTIONS.md", page(config, site))
    write_format(own)


def share_public_keys(folder: FederationFolder, names: Sequence[str]) -> None:
    """Put every site's public key into the other sites' folders, those that are here."""
    from ffalm.federate.keys import PEERS, PUBLIC

    for name, other in itertools.permutations(names, 2):
        if folder.site(name).is_dir() and (folder.site(other) / PUBLIC).is_file():
            write_atomic(folder.site(name) / PEERS / f"{other}.pub", (folder.site(other) / PUBLIC).read_bytes())


def _names(facts: dict[str, Any], setting: str) -> list[str]:
    names = facts.get(setting, [])
    require(isinstance(names, list), f"The setting {setting!r} of federation.toml must be a list of names.")
    return [str(name) for name in names]


def host_and_port(address: str, file: Path) -> tuple[str, int]:
    """The two parts of HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise UserError(f"The address in {file} must read HOST:PORT, such as 10.0.0.5:18000; got {address!r}.")
    return host.strip("[]"), int(port)
