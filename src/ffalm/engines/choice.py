"""Which engine computes a job when nobody says: the fastest that runs its model, with the reason in words."""

from __future__ import annotations

from torch import nn

from ffalm.engines.base import Engine, Job
from ffalm.engines.common import built_model
from ffalm.engines.flower.engine import FlowerEngine
from ffalm.engines.graphed import GraphedEngine, why_not_graphed
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine, refuse_privacy, why_not_stacked
from ffalm.errors import unknown

ENGINES: dict[str, type[Engine]] = {
    "loop": LoopEngine,
    "stacked": StackedEngine,
    "graphed": GraphedEngine,
    "flower": FlowerEngine,
}


def choose(name: str | Engine, job: Job) -> tuple[Engine, str]:
    """The engine for jobs like this one, and why it is that one; an engine object is taken as it is."""
    if not isinstance(name, str):
        return name, "as given"
    if name == "auto":
        return _fastest(job)
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    if ENGINES[name] is StackedEngine:
        refuse_privacy([job])
    return ENGINES[name](), "as asked"


def _fastest(job: Job) -> tuple[Engine, str]:
    """Small dense models gain most by stacking; convolutions by graphs on a GPU, and on a CPU by neither."""
    model = built_model(job)
    if any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules()):
        reason = why_not_graphed(model, job.device)
        if reason is None:
            return GraphedEngine(), "convolutions on a GPU"
        return LoopEngine(), f"convolutions, and {reason}"
    if job.precision == "bf16":
        return LoopEngine(), "bf16 of a dense model"
    if job.privacy is not None:
        return LoopEngine(), "differential privacy bounds each client's change on its own"
    reason = why_not_stacked(model, job.federation.first_rows(3).x)
    if reason is None:
        return StackedEngine(), "clients and seeds of a small model fit on one tensor"
    return LoopEngine(), f"the model cannot be stacked: {reason}"
