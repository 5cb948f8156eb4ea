"""Whether an algorithm of a user's own may train many clients at once: tried on a few rows before any training.

An objective written for one client at a time (`batch.losses.mean()`, `if`, a mean that counts padding) would run on a
tensor of many clients too, and give other numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ffalm.algorithms import Algorithm, Batch, Rows, State
from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.federation import Federation

_LANES, _ROWS = 5, 7  # unlike the number of labels and groups, so that axes taken for each other are noticed
_OURS = "ffalm."


def why_not_together(algorithm: Algorithm, federation: Federation) -> str | None:
    """Why an objective gives many clients at once other numbers than each of them alone, in one sentence; else None.

    Ours are tested, and not tried here.
    """
    if type(algorithm).__module__.startswith(_OURS):
        return None
    task = federation.task
    draws = torch.Generator().manual_seed(0)
    labels = torch.randint(task.labels, (_LANES, _ROWS), generator=draws)
    groups = torch.randint(task.groups, (_LANES, _ROWS), generator=draws)
    outputs = torch.randn(_LANES, _ROWS, task.labels, generator=draws, dtype=torch.float64)
    mask = torch.arange(_ROWS) < torch.arange(_LANES).add(_ROWS - _LANES + 1).unsqueeze(1)  # the last lane is full
    try:
        sent = _state(algorithm, task, federation.counts())
        state = {
            name: torch.stack([value.double() + 0.1 * lane for lane in range(_LANES)]) for name, value in sent.items()
        }
        alone = [
            _slopes(algorithm, task, labels[lane, own], groups[lane, own], outputs[lane, own], mask[lane, own],
                    {name: value[lane] for name, value in state.items()})
            for lane, own in enumerate(mask)
        ]  # fmt: skip
    except Exception:
        return None  # it fails for one client too, and training says how
    remedy = (
        "take sums and means over the last axis and leave rows out by `batch.mask`, as `ffalm.fairness.masked_mean` "
        "does, or use engine='loop'."
    )
    try:
        together = _slopes(algorithm, task, labels, groups, outputs, mask, state)
    except UserError as error:
        return f"{error} Or use engine='loop'."
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return f"The objective of {algorithm.title} fails on several clients at once ({reason}): {remedy}"
    for lane, own in enumerate(mask):
        for whole, part in zip(together, alone[lane], strict=True):
            if not torch.allclose(whole[lane, own], part, equal_nan=True):
                return (
                    f"The objective of {algorithm.title} gives several clients at once other numbers than each alone: "
                    f"{remedy}"
                )
    return None


def _state(algorithm: Algorithm, task: Task, counts: Tensor) -> State:
    """What a client has before its first step."""
    sent = algorithm.start(task, counts)
    return {name: sent[name] for name in algorithm.broadcasts if name in sent} | algorithm.own_state(task, counts[0])


def _slopes(
    algorithm: Algorithm, task: Task, labels: Tensor, groups: Tensor, outputs: Tensor, mask: Tensor, state: State
) -> list[Tensor]:
    """The slopes that engines ask for, one tensor for each objective."""
    losses = cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    batch = Batch(Rows(labels, groups, mask, task), losses, outputs if algorithm.by_outputs(task) else None)
    if algorithm.gradients:
        return algorithm.objective_slopes(batch, state)[1]
    return [algorithm.slopes(batch, state)]
