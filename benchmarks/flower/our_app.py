"""The same work in ffalm: its server app and client app, with whichever algorithm the case names."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import work

from ffalm.algorithms import algorithm_class
from ffalm.data.types import Examples, Task
from ffalm.engines import ClientSpec, Job, Training
from ffalm.engines.common import trained_parameters
from ffalm.engines.flower.apps import client_app, server_app
from ffalm.engines.loop import Learner
from ffalm.engines.remote.message import Fact, Kind, Message, Sites
from ffalm.engines.remote.remote_clients import RemoteClients
from ffalm.engines.remote.round_messages import received, update_message
from ffalm.engines.server import ServerContext, rounds
from ffalm.federation import Federation

TASK = Task("census")
ALGORITHM = algorithm_class(os.environ.get("FLOWER_BENCHMARK_ALGORITHM", "ffalm"))()
CPU = torch.device("cpu")


def training() -> Training:
    """What the plain app does, in our words."""
    plan: dict[str, Any] = work.plan()
    return Training(rounds=plan["rounds"], batch_size=work.BATCH, lr=work.LR, clip=work.CLIP)


def job() -> Job:
    """All clients in one place, for a simulation; without a validation part, which the plain app has not either."""
    plan: dict[str, Any] = work.plan()
    clients = tuple(Examples(*work.rows(client)) for client in range(plan["clients"]))
    return Job.of(ALGORITHM, Federation(clients, None, None, TASK), work.model, training(), 0, CPU)


def spec() -> ClientSpec:
    """What a site's training depends on besides its rows."""
    return ClientSpec(ALGORITHM, work.model, training(), TASK, 0, CPU)


def answer(kind: Kind, message: Message, node: dict[str, Fact]) -> Message:
    """One site: says which client it is and what it counts, and trains."""
    torch.set_num_threads(1)
    client = int(node["partition-id"])
    examples = Examples(*work.rows(client))
    if kind == "hello":
        return Message({"counts": {"counts": examples.counts(TASK)}}, {"client": client})
    _, sent, own = received(message)
    return update_message(Learner(spec()).learn(client, examples, sent, own))


def lead(sites: Sites, settings: dict[str, Fact]) -> None:
    """The server: learns who is who, then leads the rounds."""
    plan: dict[str, Any] = work.plan()
    while len(sites.present()) < plan["clients"]:
        time.sleep(0.1)
    hello = sites.ask("hello", dict.fromkeys(sites.present(), Message()), 300.0)
    known = {int(said.facts["client"]): node for node, said in hello.items() if isinstance(said, Message)}
    said = [hello[known[client]] for client in sorted(known)]
    counts = torch.stack([message.tensors["counts"]["counts"] for message in said if isinstance(message, Message)])
    context = ServerContext(ALGORITHM, training(), TASK, counts, 0, trained_parameters(work.model()))
    clock = work.Clock()
    for _ in rounds(context, RemoteClients(spec(), sites, known, 300.0)):
        clock.tick()


server = server_app(lead)
client = client_app(answer)
