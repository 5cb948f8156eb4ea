"""Whether an algorithm of a user's own may train many clients at once: tried on random numbers before any training.

A hook written for one client at a time (`batch.losses.mean()`, `if`, a mean that counts padding, the norm of a vector)
would run on tensors of many clients too, and give other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ffalm.algorithms import Algorithm, Batch, ModelVector, Rows, Sent, State
from ffalm.algorithms.checks import tensors
from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.randomness import Purpose, torch_seeded

_SIZES = torch.tensor([3, 9, 16, 22, 31])  # rows of each client's batch; the last has no padding
_NUMBERS = (6, 4)  # of the tensors of a vector
_LR = 0.1
_OURS = "ffalm."

Computed = Callable[[int | slice], list[Tensor]]
"""What a hook gives for one client by its number, or for a slice of them on a leading axis."""


def why_not_together(algorithm: Algorithm, federation: Federation) -> str | None:
    """Why local training gives many clients at once other numbers than each of them alone, in one sentence; else None.

    Ours are tested, and not tried here.
    """
    if type(algorithm).__module__.startswith(_OURS):
        return None
    with torch_seeded(0, Purpose.LAYERS):  # an objective may draw, and the caller's generators stay as they are
        try:
            sent = _state(algorithm, federation.task, federation.counts())
        except Exception:
            return None  # training says how it fails
        state = {name: torch.stack([value.double() + 0.1 * lane for lane in range(len(_SIZES))])
                 for name, value in sent.items()}  # fmt: skip
        refused = _refusal(
            f"The objective of {algorithm.title}",
            _slopes(algorithm, federation.task, state),
            "take sums and means over the last axis, leave rows out by `batch.mask`, as `ffalm.fairness.masked_mean` "
            "does, and draw no random numbers; or use engine='loop'.",
        )
        return refused or _refusal(
            f"`drift` or `finish` of {algorithm.title}",
            _vectors(algorithm, state),
            "compute with whole vectors, number by number and without `if`; or use engine='loop'.",
        )


def _refusal(what: str, compute: Computed, remedy: str) -> str | None:
    alone = {}
    for lane in range(len(_SIZES)):
        with suppress(Exception):  # it fails for this one alone too, and training says how
            alone[lane] = compute(lane)
    if not alone:
        return None
    try:
        together = compute(slice(None))
        same = all(
            torch.allclose(whole[lane, : len(part)], part, equal_nan=True)
            for lane, own in alone.items()
            for whole, part in zip(together, own, strict=True)
        )
    except UserError as error:
        return f"{error} Or use engine='loop'."
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return f"{what} fails on several clients at once ({reason}): {remedy}"
    return None if same else f"{what} gives several clients at once other numbers than each alone: {remedy}"


def _state(algorithm: Algorithm, task: Task, counts: Tensor) -> State:
    """What a client has before its first step."""
    sent = tensors(algorithm, "start", algorithm.start(task, counts))
    own = tensors(algorithm, "own_state", algorithm.own_state(task, counts[0]))
    return {name: sent[name] for name in algorithm.broadcasts if name in sent} | own


def _slopes(algorithm: Algorithm, task: Task, state: State) -> Computed:
    """The slopes that engines ask for, one tensor for each objective."""
    shape = (len(_SIZES), int(_SIZES.max()))
    labels, groups = torch.randint(task.labels, shape), torch.randint(task.groups, shape)
    outputs = torch.randn(*shape, task.labels, dtype=torch.float64)
    losses = cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none").view(shape)
    mask = torch.arange(shape[1]) < _SIZES.unsqueeze(1)

    def compute(lanes: int | slice) -> list[Tensor]:
        own = (lanes, slice(None) if isinstance(lanes, slice) else slice(int(_SIZES[lanes])))
        batch = Batch(
            Rows(labels[own], groups[own], mask[own], task), losses[own],
            outputs[own] if algorithm.by_outputs(task) else None,
        )  # fmt: skip
        sent = {name: value[lanes] for name, value in state.items()}
        if algorithm.gradients:
            return algorithm.objective_slopes(batch, sent)[1]
        return [algorithm.slopes(batch, sent)]

    return compute


def _vectors(algorithm: Algorithm, state: State) -> Computed:
    """The drift of a step, and what a client keeps and uploads."""
    names = {"weights", "model", *algorithm.server_vectors, *algorithm.client_vectors}
    scales = 10.0 ** -torch.arange(len(_SIZES), dtype=torch.float64).unsqueeze(1)  # norms differ from client to client
    drawn = {
        name: [scales * torch.randn(len(_SIZES), size, dtype=torch.float64) for size in _NUMBERS] for name in names
    }

    def compute(lanes: int | slice) -> list[Tensor]:
        given = {name: ModelVector([value[lanes].clone() for value in vector]) for name, vector in drawn.items()}
        received = {name: given[name] for name in algorithm.broadcasts if name in algorithm.server_vectors}
        sent = Sent({name: value[lanes] for name, value in state.items()}, given["model"], received)
        own = {name: given[name] for name in algorithm.client_vectors}
        weights = given["weights"]
        drift = algorithm.drift(weights, sent, own) or weights.zeros()
        kept, uploads = algorithm.finish(weights, sent, own, _SIZES[lanes].double(), _LR)
        return [value for vector in (drift, *kept.values(), *uploads.values()) for value in vector.tensors]

    return compute
