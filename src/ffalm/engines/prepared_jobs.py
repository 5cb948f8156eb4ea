"""Jobs about to run in an engine that computes several together, and whether their models are the same function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ffalm.engines.common import checked_model
from ffalm.engines.jobs import Job, Snapshot
from ffalm.engines.server import ServerContext

T = TypeVar("T")


@dataclass(frozen=True)
class PreparedJob:
    """A job about to run: its number among all jobs, its model, its server and where it starts."""

    number: int
    job: Job
    model: nn.Module
    context: ServerContext
    start: Snapshot
    extra: dict[str, Tensor]  # buffers that the model keeps but does not save


def prepare_job(number: int, job: Job) -> PreparedJob:
    """Build a job's model and its state before the first round."""
    model = checked_model(job)
    context = ServerContext.of(job, model)
    entries = model.state_dict()
    start = context.begin({name: entry.detach().clone() for name, entry in entries.items()})
    extra = {name: entry for name, entry in model.named_buffers() if name not in entries}
    return PreparedJob(number, job, model, context, start, extra)


def grouped(waiting: Sequence[T], alike: Callable[[T, T], bool]) -> list[list[T]]:
    """Groups of items that are alike, in the order of their first items; an item is compared with a group's first."""
    groups: list[list[T]] = []
    for item in waiting:
        group = next((group for group in groups if alike(group[0], item)), None)
        if group is None:
            groups.append([item])
        else:
            group.append(item)
    return groups


def same_function(first: nn.Module, second: nn.Module) -> bool:
    """Whether two modules compute the same function of their weights and input."""
    pairs = list(zip(first.named_modules(), second.named_modules(), strict=False))
    if len(pairs) != len(list(second.modules())) or len(pairs) != len(list(first.modules())):
        return False
    return all(name == other and _same_module(a, b) for (name, a), (other, b) in pairs)


def _same_module(a: nn.Module, b: nn.Module) -> bool:
    if type(a) is not type(b):
        return False
    entries = [
        {name: (value.shape, value.dtype, value.requires_grad) for name, value in own.items() if value is not None}
        for module in (a, b)
        for own in ({**module._parameters, **module._buffers},)
    ]
    settings = [
        {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}
        for module in (a, b)
    ]
    return entries[0] == entries[1] and settings[0].keys() == settings[1].keys() and all(
        _same_value(value, settings[1][name]) for name, value in settings[0].items()
    )  # fmt: skip


def _same_value(a: Any, b: Any) -> bool:
    """Equality of what modules carry; what cannot be compared counts as different, which costs speed only."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        # `==` of a stranger's objects may do anything.
        return False
