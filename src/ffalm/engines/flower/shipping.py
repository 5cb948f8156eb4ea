"""Jobs on their way to Ray's processes: rows travel to a machine once, and all its processes read the same copy."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray
import torch
from numpy.typing import NDArray

from ffalm.data.types import Examples
from ffalm.engines.jobs import ClientSpec, Job
from ffalm.engines.loop import Learner
from ffalm.engines.remote.message import Fact, Kind, Message
from ffalm.engines.remote.round_messages import received, update_message
from ffalm.errors import UserError
from ffalm.plugins import import_plugin, imported

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Trainer:
    """What a simulated client answers: it trains one of the shipped jobs on its own rows, as `loop` would."""

    jobs: tuple[Any, ...]  # where Ray holds each job's `ClientSpec`
    rows: tuple[tuple[Any, ...], ...]  # where Ray holds the rows of each job's clients
    plugins: tuple[Path, ...] = ()  # the files that define the jobs' algorithms

    def __call__(self, kind: Kind, message: Message, node: dict[str, Fact]) -> Message:
        client, sent, own = received(message)
        job = int(message.facts["job"])
        learner, device = _learner(self.jobs[job], self.plugins)
        return update_message(learner.learn(client, _examples(self.rows[job][client], device), sent, own))


def shipped(jobs: Sequence[Job]) -> Trainer:
    """Hand jobs over to Ray: the rows of a federation once, however many jobs train on it."""
    rows: dict[int, tuple[Any, ...]] = {}
    for job in jobs:
        if id(job.federation) not in rows:
            rows[id(job.federation)] = tuple(ray.put(_arrays(examples)) for examples in job.federation.clients)
    return Trainer(tuple(_put(job) for job in jobs), tuple(rows[id(job.federation)] for job in jobs), imported())


def _put(job: Job) -> Any:
    """A process finds its device by kind alone, since Ray says which GPU it may see."""
    spec = replace(job.spec, device=torch.device(job.spec.device.type))
    try:
        return ray.put(spec)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"The model or algorithm cannot be sent to Ray's processes: {reason}.") from error


@lru_cache(maxsize=1)
def _learner(reference: Any, plugins: tuple[Path, ...]) -> tuple[Learner, torch.device]:
    """In one of Ray's processes: what trains a job, made once; jobs come one after the other."""
    torch.set_num_threads(1)
    for path in plugins:
        import_plugin(path)
    spec: ClientSpec = ray.get(reference)
    return Learner(spec), spec.device


@lru_cache(maxsize=1024)
def _examples(reference: Any, device: torch.device) -> Examples:
    """A client's rows, read in place in Ray's memory; torch warns that it must not be written to, and nobody does."""
    arrays: Rows = ray.get(reference)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return Examples(*(torch.from_numpy(values) for values in arrays)).to(device)


def _arrays(examples: Examples) -> Rows:
    return examples.x.cpu().numpy(), examples.y.cpu().numpy(), examples.group.cpu().numpy()
