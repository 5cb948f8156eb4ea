"""A task of a site: this package's own client app, whatever app the coordinator's run holds.

Flower ships an app with every run and would import it here, next to the site's rows and its private key. So a site's
SuperNode finds commands of ours first on its PATH: `flwr-clientapp` runs the app of this installation and never unpacks
the one that was sent, and the commands for all other kinds of tasks refuse.

    python -m ffalm.federate.deploy.client_task [flwr-clientapp's own flags]
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

COMMAND = "flwr-clientapp"
STARTED_ANEW = f'exec {shlex.quote(sys.executable)} -m ffalm.federate.deploy.client_task "$@"'
REFUSED = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def main() -> None:
    """Run one task with this package's client app."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    vars(run_clientapp).update(
        install_from_fab=_install_nothing, get_project_dir=_no_folder, get_load_client_app_fn=_loader
    )
    flwr_clientapp()


def write_commands(folder: Path, client: str = "") -> None:
    """The commands that a site's SuperNode is to find; `client` is a shell command that takes a task's arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    program = client or STARTED_ANEW
    for name in (COMMAND, *REFUSED):
        refusal = f"echo 'This site answers ffalm: it runs no {name}.' >&2; exit 1"
        script = folder / name
        script.write_text(f"#!/bin/sh\n{program if name == COMMAND else refusal}\n", encoding="utf-8")
        script.chmod(0o700)


def _install_nothing(*_: object, **__: object) -> None:
    """In place of unpacking the app that came with the run."""


def _no_folder(*_: object) -> Path:
    """Nothing was unpacked, so nothing is looked for."""
    return Path()


def _loader(*_: object, **__: object) -> object:
    def load(*_: object) -> ClientApp:
        from ffalm.federate.deploy.federation_apps import client

        return client

    return load


if __name__ == "__main__":
    main()
