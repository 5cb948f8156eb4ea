"""Engines: ways of computing the rounds that an algorithm describes."""

from __future__ import annotations

from ffalm.engines.choice import ENGINES, choose, why_loop
from ffalm.engines.jobs import ClientSpec, Engine, Job, ModelFactory, Round, Snapshot, Together
from ffalm.run_settings import Precision, Training

__all__ = [
    "ENGINES",
    "ClientSpec",
    "Engine",
    "Job",
    "ModelFactory",
    "Precision",
    "Round",
    "Snapshot",
    "Together",
    "Training",
    "choose",
    "why_loop",
]
