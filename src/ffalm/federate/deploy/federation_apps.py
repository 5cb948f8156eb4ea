"""The Flower apps of a federation: what `[tool.flwr.app.components]` of the coordinator's app names.

Each end imports what it needs when it is asked: at a site every question starts a new process.
"""

from __future__ import annotations

import logging

from ffalm.engines.flower.apps import client_app, server_app
from ffalm.engines.remote.message import Fact, Kind, Message, Sites


def _lead(sites: Sites, settings: dict[str, Fact]) -> None:
    from ffalm.federate.coordinator.federated_run import lead

    log = logging.getLogger("ffalm.federate")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    lead(sites, settings)


def _answer(kind: Kind, asked: Message, node: dict[str, Fact]) -> Message:
    from ffalm.federate.site.answering import answer

    return answer(kind, asked, node)


server = server_app(_lead)
client = client_app(_answer)
