"""Engines: ways of computing the rounds that an algorithm describes."""

from __future__ import annotations

from ffalm.engines.base import Engine, Job, ModelFactory, Precision, Round, Snapshot, Training
from ffalm.engines.graphed import GraphedEngine
from ffalm.engines.loop import LoopEngine
from ffalm.errors import unknown

ENGINES: dict[str, type[Engine]] = {"loop": LoopEngine, "graphed": GraphedEngine}


def choose(name: str, job: Job) -> tuple[Engine, str]:
    """The engine for jobs like this one, and why it is that one."""
    if name == "auto":
        return LoopEngine(), "the reference runs every model"
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    return ENGINES[name](), "asked for"


__all__ = ["ENGINES", "Engine", "Job", "ModelFactory", "Precision", "Round", "Snapshot", "Training", "choose"]
