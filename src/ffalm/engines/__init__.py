"""Engines: ways of computing the rounds that an algorithm describes."""

from __future__ import annotations

from ffalm.engines.base import Engine, Job, ModelFactory, Round, Snapshot, Training
from ffalm.engines.loop import LoopEngine
from ffalm.errors import unknown

ENGINES: dict[str, type[Engine]] = {"loop": LoopEngine}


def engine(name: str) -> Engine:
    """An engine by its name."""
    if name == "auto":
        return LoopEngine()
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    return ENGINES[name]()


__all__ = ["ENGINES", "Engine", "Job", "ModelFactory", "Round", "Snapshot", "Training", "engine"]
