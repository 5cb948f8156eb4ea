"""Which engine computes a job when nobody says: the fastest that runs its model, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from ffalm.algorithms import Algorithm
from ffalm.engines.common import built_model
from ffalm.engines.flower.engine import FlowerEngine
from ffalm.engines.graphed import GraphedEngine, why_not_graphed
from ffalm.engines.jobs import Engine, Job, Together
from ffalm.engines.lockstep import LockstepEngine
from ffalm.engines.loop import LoopEngine
from ffalm.engines.objective_trial import why_not_together
from ffalm.engines.stacked import StackedEngine, why_not_stacked
from ffalm.engines.stacked.needs import needs_of, room_in, stacks_in
from ffalm.errors import look_up, require
from ffalm.system.memory import format_bytes, free

ENGINES: dict[str, type[Engine]] = {
    "loop": LoopEngine,
    "stacked": StackedEngine,
    "graphed": GraphedEngine,
    "lockstep": LockstepEngine,
    "flower": FlowerEngine,
}


#: Runs of one seed from which `lockstep` was measured to be faster than `graphed` (benchmarks/lockstep.py).
_LANES_WORTH_IT = 4


def choose(
    name: str | Engine, job: Job, together: Mapping[Together, int] | None = None, algorithms: Sequence[Algorithm] = ()
) -> tuple[Engine, str]:
    """The engine for jobs like this one, and why it is that one; an engine object is taken as it is.

    `together` is how many such jobs a process is given in one call by an engine of each kind, 1 if it does not say;
    `algorithms` are all that the engine will be given, by default the job's.
    """
    if not isinstance(name, str) and hasattr(name, "train"):
        return name, "as given"
    if isinstance(name, str) and name == "auto":
        return _fastest(job, together or {}, algorithms or [job.spec.algorithm])
    known: dict[str, type[Engine]] = {**ENGINES, "auto": LoopEngine}  # the refusal of another name lists "auto" too
    engine = look_up("engine", name, known)()
    for algorithm in algorithms or [job.spec.algorithm]:
        reason = engine.refusal(replace(job, spec=replace(job.spec, algorithm=algorithm)))
        require(reason is None, str(reason))
    return engine, "as asked"


def why_loop(algorithm: Algorithm, job: Job) -> str | None:
    """Why "auto" computes an algorithm by `loop` even if others of its study have a faster engine; None if it does not.

    `job` may be that of another algorithm of the study.
    """
    reason = why_not_together(algorithm, job.federation)
    if reason is not None or GraphedEngine.lacks(algorithm) is None:
        return reason
    model = built_model(job.spec)
    graphed = _convolves(model) and why_not_graphed(model, job.spec.device) is None
    return "convolutions, and clients upload gradients instead of training" if graphed else None


def _fastest(job: Job, together: Mapping[Together, int], algorithms: Sequence[Algorithm]) -> tuple[Engine, str]:
    """Small dense models gain most by stacking; convolutions by graphs on a GPU, and on a CPU by neither."""
    refused = next(filter(None, (why_loop(one, job) for one in algorithms)), None)
    if refused is not None:
        return LoopEngine(), refused
    model = built_model(job.spec)
    if _convolves(model):
        reason = why_not_graphed(model, job.spec.device)
        lanes = together.get(Together.SEED, 1)
        shared = lanes >= _LANES_WORTH_IT and all(LockstepEngine.lacks(one) is None for one in algorithms)
        if reason is None and shared and LockstepEngine().refusal(job) is None:
            return LockstepEngine(), f"{lanes} runs of one seed take their steps together on a GPU"
        if reason is None:
            return GraphedEngine(), "convolutions on a GPU"
        return LoopEngine(), f"convolutions, and {reason}"
    if job.spec.precision == "bf16":
        return LoopEngine(), "bf16 of a dense model"
    reason = why_not_stacked(model, job.federation.first_rows(3).x)
    if reason is not None:
        return LoopEngine(), f"the model cannot be stacked: {reason}"
    needed, left = needs_of([job], model).total, free(job.spec.device, job.processes)
    if left is not None and needed > room_in(left):
        return (
            LoopEngine(),
            f"a stack of one run needs {format_bytes(needed)}, and {format_bytes(left)} of memory are free",
        )
    in_stacks = _in_stacks(job, model, together.get(Together.CLIENTS, 1), left)
    return StackedEngine(), f"clients and seeds of a small model fit on one tensor{in_stacks}"


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules())


def _in_stacks(job: Job, model: nn.Module, together: int, left: int | None) -> str:
    """A word on jobs that must be cut into several stacks, for want of memory."""
    parts = 1 if left is None else stacks_in(left, [job] * together, model)
    return "" if parts == 1 else f", in {parts} stacks since {format_bytes(left or 0)} of memory are free"
