"""The Flower apps of a federation: what `[tool.flwr.app.components]` of the coordinator's app names.

Each end imports what it needs when it is asked.
"""

from __future__ import annotations

import logging

from flwr.supercore.inflatable.inflatable_utils import pull_objects

from ffalm.engines.flower.apps import client_app, server_app
from ffalm.engines.remote.message import Fact, Kind, Message, Sites

_FIRST_RETRY = 0.05  # seconds until an object that a site is still sending is asked for again; Flower's second is long


def _lead(sites: Sites, settings: dict[str, Fact]) -> None:
    from ffalm.federate.coordinator.federated_run import lead

    defaults = pull_objects.__kwdefaults__ or {}
    defaults["initial_backoff"] = _FIRST_RETRY
    log = logging.getLogger("ffalm.federate")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    lead(sites, settings)


def _answer(kind: Kind, asked: Message, node: dict[str, Fact]) -> Message:
    from ffalm.federate.site.answering import answer

    return answer(kind, asked, node)


server = server_app(_lead)
client = client_app(_answer)
