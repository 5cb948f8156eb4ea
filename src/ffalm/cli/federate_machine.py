"""`ffalm federate doctor | systemd`: the machine on which a coordinator or a site runs."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ffalm.cli.federate_group import AnyFolder, federate, federation, site_or_federation
from ffalm.cli.output import Json, print_json

_PANEL = "Administration"


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate doctor hospitals --json")
def doctor(name: AnyFolder, as_json: Json = False) -> None:
    """Check versions, keys, certificates, ports, clock, proxy, permissions, disk and data; exit code 1 if one fails."""
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
    raise typer.Exit(1 if failed else 0)


@federate.command(rich_help_panel=_PANEL, epilog="Example: ffalm federate systemd coordinator hospitals --user ffalm")
def systemd(
    role: Annotated[str, typer.Argument(help="coordinator, run (the training) or site.", show_default=False)],
    folder: Annotated[
        Path, typer.Argument(help="The federation folder, or the site folder.", metavar="FOLDER", show_default=False)
    ],
    user: Annotated[str | None, typer.Option(help="The user to run as. Default: you.")] = None,
) -> None:
    """Print a systemd unit for a folder, with as few rights as the process needs."""
    from ffalm.federate.deploy import require_flower

    require_flower()
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.systemd_units import unit, unit_name

    found = SiteFolder.find(folder) if role == "site" else federation(folder)
    typer.echo(unit(role, found.path, found.name, user or getpass.getuser()), nl=False)
    name = unit_name(role, found.name)
    typer.echo(f"Save it as /etc/systemd/system/{name}, then: systemctl enable --now {quote(name)}", err=True)
