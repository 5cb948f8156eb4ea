"""`ffalm federate add-site | remove-site | rotate-key | backup | restore | upgrade | doctor | systemd`."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.cli.federate_group import AnyFolder, Folder, federate, federation, site_or_federation
from ffalm.cli.output import Json, print_json
from ffalm.errors import require
from ffalm.federate.deploy import require_flower

if TYPE_CHECKING:
    from ffalm.federate.deploy.folder import FederationFolder
    from ffalm.federate.deploy.membership import Change

_PANEL = "Administration"
_Site = Annotated[str, typer.Argument(help="The site's name.", metavar="SITE")]
_PublicKey = Annotated[
    Path | None,
    typer.Option("--public-key", help="The node.pub of a key pair that the site made itself. Default: a new pair."),
]


@federate.command("add-site", rich_help_panel=_PANEL, epilog="Example: ffalm federate add-site hospitals east")
def add_site(name: Folder, site: _Site, public_key: _PublicKey = None) -> None:
    """Add a site: its folder and key; a running coordinator lets it in at once."""
    from ffalm.federate.deploy.membership import add_site as add

    folder = federation(name)
    change = add(folder, site, public_key)
    typer.echo(f"Written: {folder.site(site)}. Hand it to the site over a secure channel.")
    _tell_about_key(folder, change, "is let in")
    _warn_if_short(folder, change)
    if _trains(folder):
        typer.echo(
            "The training under way goes on without it. To let it take part, end that training (Ctrl-C in "
            f"`ffalm federate run {quote(str(name))}`) and start it again."
        )


@federate.command("remove-site", rich_help_panel=_PANEL, epilog="Example: ffalm federate remove-site hospitals west")
def remove_site(name: Folder, site: _Site) -> None:
    """Remove a site: its key is refused from now on; the other sites continue, also in a run under way."""
    from ffalm.federate.deploy.membership import remove_site as remove

    folder = federation(name)
    change = remove(folder, site)
    when = "from now on" if change.registered else "when the coordinator starts"
    typer.echo(f"Removed: {site}. Its key is refused {when}; its folder {folder.site(site)} is left as it is.")
    _warn_if_short(folder, change)


@federate.command("rotate-key", rich_help_panel=_PANEL, epilog="Example: ffalm federate rotate-key hospitals north")
def rotate_key(
    name: AnyFolder,
    site: Annotated[str | None, typer.Argument(help="The site's name.", show_default=False)] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="The coordinator's TLS key instead.")] = False,
    authority: Annotated[
        bool, typer.Option("--authority", help="With --coordinator: a new certificate authority too.")
    ] = False,
    public_key: _PublicKey = None,
) -> None:
    """Replace a site's key, by the coordinator or in the site's own folder, or the coordinator's TLS key."""
    folder = site_or_federation(name)
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.membership import rotate_own_key, rotate_server_key, rotate_site_key

    if isinstance(folder, SiteFolder):
        require(
            site is None and not (coordinator or authority or public_key),
            f"{name} is a site folder, of which the only key is the site's own: leave the other arguments out.",
        )
        file = rotate_own_key(folder)
        typer.echo(f"New key pair. Send {file} to the coordinator, who gives it to `rotate-key --public-key`;")
        typer.echo("until then this site is refused. With secure aggregation send it directly to the other sites too.")
        return
    require((site is None) == coordinator, "Name one site, or --coordinator, whose key is to be replaced.")
    require(coordinator or not authority, "--authority goes with --coordinator.")
    if site is not None:
        change = rotate_site_key(folder, site, public_key)
        if public_key is None:
            typer.echo(f"New key pair in {folder.site(site)}: hand node.key to the site over a secure channel.")
        _tell_about_key(folder, change, "is let in, and the old one refused,")
        return
    require(public_key is None, "--public-key is of a site: name the site.")
    rotate_server_key(folder, authority)
    if authority:
        typer.echo("New authority, key and certificate. Send coordinator/ca.crt to every site, which replaces its own:")
        typer.echo("from then on it refuses the old ones, and until then the new.")
    else:
        typer.echo("New key and certificate of the coordinator; sites take it by the ca.crt that they have.")
        typer.echo("If the old key was stolen, use --authority: a certificate stays good until it expires.")


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate backup hospitals /backups/hospitals.tar")
def backup(
    name: Folder,
    file: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE", show_default=False)],
) -> None:
    """Write the whole federation folder into one file, also while the coordinator is running."""
    from ffalm.federate.deploy.backups import back_up

    folder = federation(name)
    manifest = back_up(folder, file)
    size = file.stat().st_size / 2**20
    typer.echo(f"Written: {file}, {len(manifest['files'])} files, {size:.1f} MB.")
    typer.echo(
        "ffalm: warning: it holds the private keys of the federation: keep it where only you can read.", err=True
    )


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate restore /backups/hospitals.tar hospitals")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.", metavar="FILE", show_default=False)],
    path: Annotated[Path, typer.Argument(help="The folder to make.", metavar="FOLDER", show_default=False)],
) -> None:
    """Restore a federation folder from a backup after verifying its checksums; nothing is overwritten."""
    require_flower()
    from ffalm.federate.deploy.backups import restore as put_back

    manifest = put_back(file, path)
    typer.echo(f"Restored: {path}, the federation {manifest['federation']} as of {manifest['time']}.")
    typer.echo("Sites and keys are those of that time: repeat what was removed or replaced since.")


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate upgrade hospitals")
def upgrade(name: AnyFolder) -> None:
    """Migrate a federation or site folder to this version's format; folders of newer versions are refused."""
    path = site_or_federation(name).path
    from ffalm.federate.deploy.folder_format import CURRENT
    from ffalm.federate.deploy.folder_format import upgrade as migrate
    from ffalm.federate.deploy.operations import processes_of

    running = [who for who, process in processes_of(path).items() if process.pid() is not None]
    require(not running, f"{', '.join(running)} of {name} runs here: `ffalm federate stop {quote(str(name))}` first.")
    done = migrate(path)
    typer.echo(f"Upgraded: {'; '.join(done)}." if done else f"Nothing to do: {name} has the current format, {CURRENT}.")


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate doctor hospitals --json")
def doctor(name: AnyFolder, as_json: Json = False) -> None:
    """Check versions, keys, certificates, ports, clock, proxy, permissions, disk and data; exit code 3 if one fails."""
    folder = site_or_federation(name)
    from ffalm.federate.deploy.doctor import examine
    from ffalm.federate.deploy.process_log import without_control_characters

    checks = list(examine(folder))
    failed = any(check.level == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(without_control_characters(f"{check.level:4}  {check.name:{width}}  {check.message}"))
    raise typer.Exit(3 if failed else 0)


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate systemd coordinator hospitals --user ffalm")
def systemd(
    role: Annotated[str, typer.Argument(help="coordinator, run (the training) or site.", show_default=False)],
    folder: Annotated[
        Path, typer.Argument(help="The federation folder, or the site folder.", metavar="FOLDER", show_default=False)
    ],
    user: Annotated[str | None, typer.Option(help="The user to run as. Default: you.")] = None,
) -> None:
    """Print a systemd unit for a folder, with as few rights as the process needs."""
    require_flower()
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.systemd_units import unit, unit_name

    found = SiteFolder.find(folder) if role == "site" else federation(folder)
    typer.echo(unit(role, found.path, found.name, user or getpass.getuser()), nl=False)
    name = unit_name(role, found.name)
    typer.echo(f"Save it as /etc/systemd/system/{name}, then: systemctl enable --now {quote(name)}", err=True)


def _tell_about_key(folder: FederationFolder, change: Change, happens: str) -> None:
    when = "now" if change.registered else "when the coordinator starts"
    typer.echo(f"The new key of {change.site} {happens} {when}.")
    if change.secure:
        typer.echo(
            f"Secure aggregation: the other sites need {folder.site(change.site) / 'node.pub'} as "
            f"peers/{change.site}.pub, from {change.site} itself."
        )


def _warn_if_short(folder: FederationFolder, change: Change) -> None:
    if change.short:
        typer.echo(
            f"ffalm: warning: the rule min_sites asks for {change.short} more than there are: lower it in "
            f"{folder.path / 'federation.toml'}, or add a site, before the next run.",
            err=True,
        )


def _trains(folder: FederationFolder) -> bool:
    from ffalm.federate.deploy import follow
    from ffalm.federate.deploy.operations import CoordinatorProcess

    coordinator = CoordinatorProcess(folder)
    return coordinator.process.pid() is not None and follow.under_way(coordinator) is not None
