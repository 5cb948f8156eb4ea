"""The graphed engine: a training step captured once as a CUDA graph and replayed for every batch of every client.

A small convolutional network on a large GPU spends its time launching kernels; a replayed graph launches them all at
once. What is left idle then is most of the GPU itself, which such small kernels cannot fill: so several clients train
at the same time, each by a worker with a copy of the model and a stream of its own. All rows of a federation lie on the
GPU as they came (images as bytes), and batches are gathered there. BatchNorm sees exact batches: a last partial batch
has a graph of its own size instead of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from ffalm.algorithms import Algorithm
from ffalm.engines.common import built_model
from ffalm.engines.graphed.graphed_clients import GraphedClients
from ffalm.engines.graphed.worker_pool import IN_FLIGHT, WorkerPool
from ffalm.engines.jobs import Engine, Job, Round, Together
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.server import ServerContext, rounds
from ffalm.errors import require
from ffalm.run_settings import Training


class GraphedEngine(Engine):
    """Several clients at a time, each step one launch. Workers are kept for later jobs of the same kind."""

    name: ClassVar[str] = "graphed"
    together: ClassVar[Together] = Together.NONE
    spreads: ClassVar[bool] = False

    def __init__(self, in_flight: int = IN_FLIGHT) -> None:
        self._in_flight = in_flight
        self._kept: tuple[Any, WorkerPool] | None = None

    @classmethod
    def lacks(cls, algorithm: Algorithm) -> str | None:
        """A captured step ends with the optimizer's."""
        if not algorithm.gradients:
            return None
        return (
            f"Clients of {algorithm.title} upload gradients instead of training, which the engine 'graphed' does not "
            "compute: use engine='loop'."
        )

    def refusal(self, job: Job) -> str | None:
        """Graphs are captured on a GPU or not at all, and not of layers that draw at random."""
        if job.spec.device.type != "cuda":
            return "The engine 'graphed' needs a GPU: use device cuda, or another engine."
        missing = self.lacks(job.spec.algorithm)
        if missing is not None:
            return missing
        reason = why_not_graphed(built_model(job.spec), job.spec.device)
        return None if reason is None else f"The model cannot be captured: {reason}; use engine='loop'."

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            reason = self.refusal(job)
            require(reason is None, str(reason))
            for round in rounds(ServerContext.of(job), GraphedClients(job, self._workers(job))):
                yield number, round

    def _workers(self, job: Job) -> WorkerPool:
        """The workers of a job; those of another kind of job are given up first, for graphs hold their memory."""
        like, training = job.federation.first_rows(1), job.spec.training
        features = (tuple(like.x.shape[1:]), like.x.dtype)
        # Of the training only what a captured step depends on: batches, rounds and learning rates may differ.
        step = (training.clip, training.batch_size, local_optimizer(training))
        key = (replace(job.spec, seed=0, training=Training()), step, job.compiled, features)
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            self._kept = key, WorkerPool(job, self._in_flight)
        return self._kept[1]


def why_not_graphed(model: nn.Module, device: torch.device) -> str | None:
    """Why a model cannot be captured, None if nothing speaks against it."""
    if device.type != "cuda":
        return "there is no GPU"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules()):
        return "dropout draws its own numbers for each client"
    return None


__all__ = ["GraphedEngine", "why_not_graphed"]
