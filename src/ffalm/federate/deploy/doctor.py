"""`ffalm federate doctor`: checks for everything that commonly keeps a coordinator or a site from working."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ffalm.errors import UserError, require
from ffalm.federate.deploy import machine_checks
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.folder_format import CURRENT, check_format
from ffalm.federate.deploy.machine_checks import Check
from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
from ffalm.federate.federation_config import FederationConfig, LocalData, LocalTable, SiteConfig
from ffalm.federate.keys import PRIVATE, PUBLIC, fingerprint, read_private, read_public


def examine(folder: FederationFolder | SiteFolder) -> Iterator[Check]:
    """The checks of a federation or site folder; those that need its settings end if these are wrong."""
    yield from machine_checks.versions(folder.run if isinstance(folder, FederationFolder) else folder.path)
    yield _format(folder.path)
    try:
        yield from _coordinator(folder) if isinstance(folder, FederationFolder) else _site(folder)
    except UserError as error:
        yield Check("settings", "fail", str(error))
    yield machine_checks.writable(folder.path)
    yield machine_checks.disk(folder.path)
    yield machine_checks.file_limit()


def _coordinator(folder: FederationFolder) -> Iterator[Check]:
    config = FederationConfig.read(folder.path / "federation.toml")
    yield Check("settings", "ok", f"{len(config.active)} sites")
    own, port = folder.coordinator, folder.address[1]
    yield machine_checks.authority(own / "ca.crt")
    yield machine_checks.server_certificate(own)
    coordinator = CoordinatorProcess(folder)
    running = coordinator.process.pid()
    yield Check("process", "ok", f"runs as {running}" if running else "not running")
    if running and coordinator.control.knows_keys:
        yield from machine_checks.connection(coordinator.inside, port, own / "ca.crt")
    elif not running:
        yield machine_checks.port_free(coordinator.usual_listen, port)
        if config.metrics.port:
            yield machine_checks.port_free("127.0.0.1", config.metrics.port)
    for name in config.active:
        yield _key(f"key of {name}", folder.site(name) / PUBLIC)
    keys = {f"{PRIVATE} of {name}": folder.site(name) / PRIVATE for name in config.active}
    secrets = {path.name: path for path in (own, own / "ca.key", own / "server.key")} | keys
    for name, path in {**secrets, folder.run.name: folder.run}.items():
        if path in (own, own / "ca.key") or path.exists():
            yield machine_checks.private(path, name)


def _site(folder: SiteFolder) -> Iterator[Check]:
    config = SiteConfig.read(folder.path / "site.toml")
    yield Check("settings", "ok", config.name)
    for what, path in data_paths(folder.path, config.data).items():
        read = machine_checks.readable(path, f"data {what}")
        yield read
        if isinstance(config.data, LocalTable) and read.level == "ok":
            yield from _columns(path, config.data)
    yield machine_checks.private(folder.path / PRIVATE)
    yield _key("key", folder.path / PUBLIC, folder.path / PRIVATE)
    yield machine_checks.authority(folder.path / "ca.crt")
    running = SiteProcess(folder).process.pid()
    yield Check("process", "ok", f"runs as {running}" if running else "not running")
    host, port = folder.address
    yield machine_checks.proxy(host)
    if (folder.path / "ca.crt").is_file():
        yield from machine_checks.connection(host, port, folder.path / "ca.crt")


def _columns(file: Path, data: LocalTable) -> Iterator[Check]:
    """Columns that a federation could not use."""
    from ffalm.data.encoding import is_numeric
    from ffalm.data.number_cells import written_strangely
    from ffalm.data.table_columns import check_feature
    from ffalm.data.table_files import read_table
    from ffalm.federate.site.rows import check_complete

    try:
        frame, _ = read_table(str(file), data.separator, data.decimal, data.encoding)
    except UserError as error:
        yield Check("data columns", "fail", str(error))
        return
    for name in frame.columns:
        try:
            if name not in data.drop:
                if is_numeric(frame[name]):
                    check_complete(frame[name], file.name)
                check_feature(frame[name], False, file.name, data.decimal)
        except UserError as error:
            yield Check("data columns", "warn", str(error))
    kept = {name: frame[name] for name in frame.columns if name not in data.drop}
    for name, told in written_strangely(str(file), kept, data.separator, data.decimal, data.encoding).items():
        yield Check("data columns", "warn", f"The column {name!r} {told}")


def data_paths(folder: Path, data: LocalData) -> dict[str, Path]:
    """The paths of a site's data, by setting."""
    named = {name: getattr(data, name) for name in ("file", "folder", "labels") if hasattr(data, name)}
    return {name: folder / Path(value).expanduser() for name, value in named.items()}


def _format(folder: Path) -> Check:
    try:
        found = check_format(folder)
    except UserError as error:
        return Check("format", "fail", str(error))
    if found < CURRENT:
        return Check("format", "warn", f"{found}, the current one is {CURRENT}: ffalm federate upgrade")
    return Check("format", "ok", str(found))


def _key(name: str, public: Path, private: Path | None = None) -> Check:
    """The start of a public key's fingerprint; fails if the key is unreadable, or not the private one's."""
    try:
        paired = private is None or read_private(private).public_key() == read_public(public)
        require(paired, f"{PUBLIC} does not belong to {PRIVATE}: make a new pair with ffalm federate rotate-key")
        return Check(name, "ok", fingerprint(public)[:16])
    except UserError as error:
        return Check(name, "fail", str(error))
