"""The engine that simulates a federation on Flower's own runtime, each client a Flower node.

It trains as `loop` does and gives its numbers; what it adds is every message that a real federation would exchange.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ffalm.engines.jobs import Engine, Job, Round, Together
from ffalm.engines.remote.remote_clients import RemoteClients
from ffalm.engines.server import ServerContext, rounds
from ffalm.system import quiet
from ffalm.system.hardware import cores

#: Variables under which Flower and Ray neither phone home, nor install anything, nor fight over cores.
QUIET = {**quiet.QUIET, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}


class FlowerEngine(Engine):
    """Clients as nodes of Flower's simulation. Jobs of one call share its start, which takes seconds."""

    name: ClassVar[str] = "flower"
    together: ClassVar[Together] = Together.CLIENTS
    spreads: ClassVar[bool] = True

    def __init__(self) -> None:
        quiet.require_installed("The engine 'flower'", "ray")

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other, on as many nodes as the largest has clients."""
        if not jobs:
            return
        keep_quiet()
        from ffalm.engines.flower.shipping import shipped
        from ffalm.engines.flower.simulated import ray_session, simulated

        nodes = max(len(job.federation.clients) for job in jobs)
        gpu = any(job.spec.device.type == "cuda" for job in jobs)
        with ray_session(min(cores(), nodes)), simulated(nodes, shipped(jobs), gpu) as sites:
            order = dict(enumerate(sites.present()))
            for number, job in enumerate(jobs):
                rows, about = job.federation.validation, {"job": number}
                clients = RemoteClients(job.spec, sites, order, validation=rows, about=about)
                for round in rounds(ServerContext.of(job), clients):
                    yield number, round


def keep_quiet() -> None:
    """Set the variables for this process and its children, except those that the user has set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
