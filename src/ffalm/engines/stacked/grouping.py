"""Which jobs can share a stack: those that run the same functions on data of the same shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ffalm.algorithms import State
from ffalm.engines.jobs import Job
from ffalm.engines.prepared_jobs import PreparedJob, grouped, same_function


def stacks(waiting: Sequence[PreparedJob]) -> list[list[PreparedJob]]:
    """Jobs that can be computed together, in the order of the first of each."""
    return grouped(waiting, _alike)


def _alike(first: PreparedJob, second: PreparedJob) -> bool:
    """Whether two jobs differ in numbers only."""
    a, b = first.job, second.job
    looks = [job.federation.first_rows(1).x for job in (a, b)]
    features = [(look.shape[1:], look.dtype) for look in looks]
    tasks = [(task.labels, task.groups, task.compared, task.favourable) for task in (a.spec.task, b.spec.task)]
    return (
        a.spec.algorithm.trains_like(b.spec.algorithm)
        and a.spec.training == b.spec.training
        and (a.spec.device, a.spec.precision) == (b.spec.device, b.spec.precision)
        and features[0] == features[1]
        and tasks[0] == tasks[1]
        and first.start.round == second.start.round
        and _sent_shapes(a, first.start.state) == _sent_shapes(b, second.start.state)
        and same_function(first.model, second.model)
    )


def _sent_shapes(job: Job, state: State) -> list[torch.Size]:
    return [state[name].shape for name in job.spec.algorithm.broadcasts if name in state]
