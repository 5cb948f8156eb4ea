"""`ffalm federate`: a coordinator and its sites, each on its own machine, or all on this one to try it."""

from __future__ import annotations

from ffalm.cli import federate_admin, federate_overview, federate_training
from ffalm.cli.federate_group import federate

#: The command group, and the modules whose commands it has.
__all__ = ["federate", "federate_admin", "federate_overview", "federate_training"]
