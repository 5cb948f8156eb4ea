"""What the commands of `ffalm federate` share: the group itself, arguments, and finding a federation's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.federate.deploy import require_flower

if TYPE_CHECKING:
    from ffalm.federate.deploy.folder import FederationFolder, SiteFolder

federate = typer.Typer(
    help="Train with real sites over an encrypted network: rows stay at the sites, weights and sums are sent.",
    no_args_is_help=True,
    epilog="Try it: ffalm federate init demo --demo census && ffalm federate run demo --local",
)


@federate.callback()
def _keep_others_out() -> None:
    """Let nobody else write our files: a plugin named in federation.toml runs with its owner's rights."""
    os.umask(os.umask(0o022) | 0o022)


Folder = Annotated[
    Path, typer.Argument(help="The federation folder that `init` made.", show_default=False, metavar="FEDERATION")
]
AnyFolder = Annotated[
    Path, typer.Argument(help="A federation folder, or a site folder.", metavar="FEDERATION|SITE_FOLDER")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption and no keys: for experiments on one machine only.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background; `ffalm federate stop` ends it.")]


def federation(path: Path) -> FederationFolder:
    """The federation folder at a path."""
    from ffalm.federate.deploy.folder import FederationFolder

    require_flower()
    return FederationFolder.find(path)


def site_or_federation(path: Path) -> SiteFolder | FederationFolder:
    """The site folder or federation folder at a path."""
    from ffalm.federate.deploy.folder import SiteFolder

    require_flower()
    return SiteFolder.find(path) if (path / "site.toml").is_file() else federation(path)


def sound_federation(path: Path) -> FederationFolder:
    """A federation with valid settings: a mistake in federation.toml is reported before anything starts."""
    from ffalm.federate.deploy.folder_format import check_format
    from ffalm.federate.federation_config import FederationConfig

    folder = federation(path)
    check_format(folder.path)
    FederationConfig.read(folder.path / "federation.toml")
    return folder
