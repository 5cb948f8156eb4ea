"""The Flower apps of a federation, which `[tool.flwr.app.components]` of the coordinator's app names.

Each imports what it needs when it is called.
"""

from __future__ import annotations

from flwr.serverapp import Grid

from ffalm.engines.flower.apps import client_app, server_app
from ffalm.engines.flower.sites import GridSites
from ffalm.engines.remote.message import Fact, Kind, Message, Sites
from ffalm.federate.deploy.process_log import escape_records, start_log

_PAUSE = 0.01  # seconds


def bundled(grid: Grid) -> GridSites:
    """The sites behind this package's coordinator, which holds requests, so that they need no pause."""
    from ffalm.federate.deploy.bundled_grid import BundledGrid

    return GridSites(BundledGrid(grid), longest=_PAUSE)


def _lead(sites: Sites, settings: dict[str, Fact]) -> None:
    from ffalm.federate.coordinator.federated_run import lead

    escape_records()
    start_log("%(message)s")
    lead(sites, settings)


def _answer(kind: Kind, asked: Message, node: dict[str, Fact]) -> Message:
    from ffalm.federate.site.answering import answer

    return answer(kind, asked, node)


server = server_app(_lead, bundled)
client = client_app(_answer)
