"""Short ways to make what the algorithm contract passes around."""

from __future__ import annotations

import torch
from torch import Tensor

from ffalm.algorithms import Batch, ModelVector, RoundReport, Rows
from ffalm.data.types import Task
from ffalm.fairness import Tally


def task_of(labels: int = 2, groups: int = 2, favourable: int = 1) -> Task:
    """A task with so many labels and groups."""
    return Task("test", label_names=tuple(map(str, range(labels))), group_names=tuple(map(str, range(groups))),
                favourable=favourable)  # fmt: skip


TASK = task_of()


def batch_of(
    losses: Tensor, groups: Tensor, labels: Tensor | None = None, mask: Tensor | None = None, task: Task = TASK
) -> Batch:
    """A batch by its losses; all rows count unless a mask says otherwise."""
    mask = torch.ones_like(groups, dtype=torch.bool) if mask is None else mask
    return Batch(Rows(torch.zeros_like(groups) if labels is None else labels, groups, mask, task), losses)


def report_of(
    round: int, sizes: Tensor, taking_part: Tensor, tally: Tally | None, task: Task = TASK,
    validation: Tally | None = None,
) -> RoundReport:  # fmt: skip
    """A report of clients with so many training rows, whatever their labels and groups."""
    counts = torch.zeros(*sizes.shape, task.labels, task.groups, dtype=torch.int64)
    counts[..., 0, 0] = sizes
    return RoundReport(round, counts, taking_part, tally, task, validation)


def vector(*numbers: float) -> ModelVector:
    """A model-sized vector of a model with so many numbers."""
    return ModelVector([torch.tensor(numbers, dtype=torch.float64)])


def everyone(*sizes: int) -> RoundReport:
    """The report of round 1 in which clients of these sizes all took part."""
    return report_of(1, torch.tensor(sizes), torch.ones(len(sizes), dtype=torch.bool), None)
