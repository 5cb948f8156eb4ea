"""Algorithms written for ffalm 0.1 keep working for one release: their signatures are adapted, with a warning."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

_RENAMED = {"moved": "dual_step", "settled": "project"}


def adapt_old_signatures(cls: Any) -> None:
    """Wrap `objective(losses, groups, labels, mask, state)` and `start(counts)`; rename `moved` and `settled`."""
    old = [name for name in _RENAMED if name in cls.__dict__]
    for name in old:
        setattr(cls, _RENAMED[name], cls.__dict__[name])
    objective, start = cls.__dict__.get("objective"), cls.__dict__.get("start")
    if _first_parameter(objective) == "losses":
        old.append("objective")
        cls.objective = lambda self, batch, state: objective(
            self, batch.losses, batch.groups, batch.labels, batch.mask, state
        )
    if _first_parameter(start) == "counts":
        old.append("start")
        cls.start = lambda self, task, counts: start(self, counts)
    if old:
        warnings.warn(
            f"{cls.__name__} uses the algorithm contract of ffalm 0.1 ({', '.join(old)}), which the next release "
            "drops: write objective(batch, state), start(task, counts), dual_step and project (see CONTRIBUTING.md).",
            DeprecationWarning,
            stacklevel=4,
        )


def _first_parameter(function: Any) -> str | None:
    """The name of a method's first parameter after `self`."""
    return None if function is None else next(iter(list(inspect.signature(function).parameters)[1:]), None)
