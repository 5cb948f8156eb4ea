"""`ffalm federate doctor`: everything that commonly keeps a coordinator or a site from working, looked at in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ffalm.errors import UserError
from ffalm.federate.deploy import connection_checks, machine_checks
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.folder_format import CURRENT, check_format, read_format
from ffalm.federate.deploy.machine_checks import Check
from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
from ffalm.federate.federation_config import FederationConfig, LocalData, SiteConfig
from ffalm.federate.keys import PRIVATE, PUBLIC, fingerprint, read_private, read_public


def examine_coordinator(folder: FederationFolder) -> Iterator[Check]:
    """The checks of a federation folder."""
    yield from machine_checks.versions(folder.run)
    yield _format(folder.path)
    try:
        config = FederationConfig.read(folder.path / "federation.toml")
    except UserError as error:
        yield Check("settings", "fail", str(error))
        return
    yield Check("settings", "ok", f"{len(config.active)} sites")
    own, port = folder.coordinator, folder.address[1]
    yield connection_checks.authority(own / "ca.crt")
    yield connection_checks.server_certificate(own)
    coordinator = CoordinatorProcess(folder)
    running = coordinator.process.pid()
    yield Check("process", "ok", f"runs as {running}" if running else "not running")
    if running and coordinator.control.knows_keys:
        inside = "127.0.0.1" if coordinator.usual_listen == "0.0.0.0" else coordinator.usual_listen
        yield from connection_checks.connection(inside, port, own / "ca.crt")
    elif not running:
        yield connection_checks.port_free(coordinator.usual_listen, port)
        if config.metrics.port:
            yield connection_checks.port_free("127.0.0.1", config.metrics.port)
    for name in config.active:
        yield _public_key(folder.site(name) / PUBLIC, name)
    secrets = [own, own / "ca.key", own / "server.key", *(folder.site(name) / PRIVATE for name in config.active)]
    for path in [*secrets, folder.run]:
        if path in (own, own / "ca.key") or path.exists():
            yield machine_checks.private(path)
    yield machine_checks.disk(folder.path)
    yield machine_checks.file_limit()


def examine_site(folder: SiteFolder) -> Iterator[Check]:
    """The checks of a site folder."""
    yield from machine_checks.versions(folder.path)
    yield _format(folder.path)
    try:
        config = SiteConfig.read(folder.path / "site.toml")
    except UserError as error:
        yield Check("settings", "fail", str(error))
        return
    yield Check("settings", "ok", config.name)
    for what, path in data_paths(folder.path, config.data).items():
        yield machine_checks.readable(path, f"data {what}")
    yield machine_checks.private(folder.path / PRIVATE)
    yield _key_pair(folder.path)
    yield connection_checks.authority(folder.path / "ca.crt")
    running = SiteProcess(folder).process.pid()
    yield Check("process", "ok", f"runs as {running}" if running else "not running")
    host, port = folder.address
    yield machine_checks.proxy(host)
    if (folder.path / "ca.crt").is_file():
        yield from connection_checks.connection(host, port, folder.path / "ca.crt")
    yield machine_checks.disk(folder.path)
    yield machine_checks.file_limit()


def data_paths(folder: Path, data: LocalData) -> dict[str, Path]:
    """Where a site's data is, by the setting that says so."""
    named = {name: getattr(data, name) for name in ("file", "folder", "labels") if hasattr(data, name)}
    return {name: folder / Path(value).expanduser() for name, value in named.items()}


def _format(folder: Path) -> Check:
    try:
        check_format(folder)
    except UserError as error:
        return Check("format", "fail", str(error))
    found = read_format(folder)
    if found < CURRENT:
        return Check("format", "warn", f"{found}, the current one is {CURRENT}: ffalm federate upgrade")
    return Check("format", "ok", str(found))


def _public_key(file: Path, site: str) -> Check:
    name = f"key of {site}"
    try:
        return Check(name, "ok", fingerprint(file)[:16])
    except UserError as error:
        return Check(name, "fail", str(error))


def _key_pair(folder: Path) -> Check:
    """Whether the private key can be used and the public one is its other half."""
    try:
        ours = read_private(folder / PRIVATE).public_key()
        matches = ours == read_public(folder / PUBLIC)
    except UserError as error:
        return Check("key", "fail", str(error))
    if not matches:
        return Check("key", "fail", f"{PUBLIC} is not of {PRIVATE}: make a new pair with ffalm federate rotate-key")
    return Check("key", "ok", fingerprint(folder / PUBLIC)[:16])
