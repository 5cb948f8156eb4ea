"""`ffalm federate`: a coordinator and its sites, each on its own machine, or all on this one to try it."""

from __future__ import annotations

import typer

from ffalm.cli import federate_admin, federate_machine, federate_overview, federate_training
from ffalm.cli.federate_group import federate

#: The modules whose commands the group has, in the order of its help.
COMMANDS = (federate_overview, federate_training, federate_admin, federate_machine)


def add_to(app: typer.Typer) -> None:
    """Register the command group."""
    app.add_typer(federate, name="federate")
