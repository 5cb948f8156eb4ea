"""The graphed engine: a training step captured once as a CUDA graph and replayed for every batch of every client.

A small convolutional network on a large GPU spends its time launching kernels; a replayed graph launches them all at
once. What is left idle then is most of the GPU itself, which such small kernels cannot fill: so several clients train
at the same time, each in a lane with a copy of the model and a stream of its own. All rows of a federation lie on the
GPU as they came (images as bytes), and batches are gathered there. BatchNorm sees exact batches: a last partial batch
has a graph of its own size instead of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from ffalm.engines.base import Job, Round
from ffalm.engines.graphed.clients import GraphedClients
from ffalm.engines.graphed.lanes import IN_FLIGHT, Lanes
from ffalm.engines.rounds import Terms, rounds
from ffalm.errors import require


class GraphedEngine:
    """Several clients at a time, each step one launch. Lanes are kept for later jobs of the same kind."""

    name: ClassVar[str] = "graphed"
    together: ClassVar[bool] = False
    spreads: ClassVar[bool] = False

    def __init__(self, in_flight: int = IN_FLIGHT) -> None:
        self._in_flight = in_flight
        self._kept: tuple[Any, Lanes] | None = None

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            refuse_cpu(job)
            for round in rounds(Terms.of(job), GraphedClients(job, self._lanes(job))):
                yield number, round

    def _lanes(self, job: Job) -> Lanes:
        """The lanes of a job; those of another kind of job are given up first, for graphs hold their memory."""
        task = job.federation.task
        like = job.federation.first_rows(1)
        features = (tuple(like.x.shape[1:]), like.x.dtype)
        numerics = (job.precision, job.channels_last, job.compiled, job.device)
        sizes = (job.training.clip, job.training.batch_size)
        key = (job.model, job.algorithm, sizes, task.labels, task.groups, features, numerics)
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            self._kept = key, Lanes(job, self._in_flight)
        return self._kept[1]


def refuse_cpu(job: Job) -> None:
    """Graphs are captured on a GPU or not at all."""
    require(job.device.type == "cuda", "The engine 'graphed' needs a GPU: use device cuda, or another engine.")


def why_not_graphed(model: nn.Module, device: torch.device) -> str | None:
    """Why a model cannot be captured, None where nothing speaks against it."""
    if device.type != "cuda":
        return "there is no GPU"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules()):
        return "dropout draws its own numbers for each client"
    return None


__all__ = ["GraphedEngine", "refuse_cpu", "why_not_graphed"]
