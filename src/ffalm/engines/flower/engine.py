"""The engine that simulates a federation on Flower's own runtime, each client a Flower node.

It trains as `loop` does and gives its numbers; what it adds is every message that a real federation would exchange.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ffalm.engines.jobs import Engine, Job, Model, Round
from ffalm.engines.loop import LoopClients
from ffalm.engines.remote.message import Failure, Kind, Message, Sites
from ffalm.engines.remote.remote_clients import RemoteClients
from ffalm.engines.server import ServerContext, rounds
from ffalm.system import quiet
from ffalm.system.hardware import cores

#: Variables under which Flower and Ray neither phone home, nor install anything, nor fight over cores.
QUIET = {**quiet.QUIET, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}


class FlowerEngine(Engine):
    """Clients as nodes of Flower's simulation. Jobs of one call share its start, which takes seconds."""

    name: ClassVar[str] = "flower"
    together: ClassVar[bool] = True
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
                for round in _rounds(job, _JobSites(sites, number), order):
                    yield number, round


def _rounds(job: Job, sites: Sites, order: Mapping[int, int]) -> Iterator[Round]:
    here = LoopClients(job)

    def begin() -> Model:
        return {name: value.cpu() for name, value in here.begin().items()}  # as answers are

    clients = RemoteClients(sites, order, job.spec.algorithm, begin, math.inf, here.validate)
    return rounds(ServerContext.of(job), clients)


@dataclass(frozen=True)
class _JobSites:
    """The sites of a simulation as one of its jobs sees them: what it asks says which job it is about."""

    sites: Sites
    job: int

    def present(self) -> list[int]:
        """All of them."""
        return self.sites.present()

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        """The same question, about this job."""
        about = {site: replace(message, facts={**message.facts, "job": self.job}) for site, message in messages.items()}
        return self.sites.ask(kind, about, deadline)


def keep_quiet() -> None:
    """Set the variables for this process and its children, except those that the user has set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
