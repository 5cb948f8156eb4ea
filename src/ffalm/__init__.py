"""ffalm: group-fair federated learning.

Train one classifier over many data owners so that it treats groups of people alike. Everything public is reachable
from here; each name is imported when it is first used, so that `import ffalm` costs no torch.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from ffalm import fairness, metrics
    from ffalm.algorithms import (
        AFL,
        FCFL,
        FFALM,
        FPFL,
        QFFL,
        SCAFFOLD,
        Algorithm,
        Batch,
        FairALM,
        FairFed,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedFB,
        FedGFT,
        FedMinMax,
        FedProx,
        Lagrangian,
        Measure,
        ModelVector,
        Reductions,
        Reweighing,
        RoundReport,
        Sent,
        algorithms,
    )  # fmt: skip
    from ffalm.algorithms.registry import register
    from ffalm.auditing.fairness_audit import Audit, audit
    from ffalm.blind_mode import BlindAnswer, blind, group_model
    from ffalm.data.array_parts import UnscaledFeaturesWarning
    from ffalm.data.types import Examples, Task
    from ffalm.errors import UserError
    from ffalm.estimator import FairFederatedClassifier
    from ffalm.fair_answer import FairAnswer, fair
    from ffalm.fairness import Tally
    from ffalm.federation import Federation, load
    from ffalm.privacy import Privacy
    from ffalm.runs import Result
    from ffalm.simulation import DivergedError, simulate
    from ffalm.studies.left_out_sites import LeaveOneOut, leave_one_out
    from ffalm.studies.model_folders import load_model
    from ffalm.studies.results import Study
    from ffalm.studies.study import compare
    from ffalm.studies.sweeps import Sweep, sweep
    from ffalm.targets import Target
    from ffalm.targets.score_repair import repair
    from ffalm.targets.score_thresholds import ScoreThresholds
    from ffalm.trained_models.trained_model import TrainedModel

__version__ = "0.13.4"
__all__ = [
    "AFL", "FCFL", "FFALM", "FPFL", "QFFL", "SCAFFOLD", "Algorithm", "Audit", "Batch", "BlindAnswer", "DivergedError",
    "Examples", "FairALM", "FairAnswer", "FairFed", "FairFederatedClassifier", "FedAdam", "FedAvg", "FedAvgM", "FedFB",
    "FedGFT", "FedMinMax", "FedProx", "Federation", "Lagrangian", "LeaveOneOut", "Measure", "ModelVector", "Privacy",
    "Reductions", "Result", "Reweighing", "RoundReport", "ScoreThresholds", "Sent", "Study", "Sweep", "Tally", "Target",
    "Task", "TrainedModel", "UnscaledFeaturesWarning", "UserError", "algorithms", "audit", "blind", "compare", "fair",
    "fairness", "group_model", "leave_one_out", "load", "load_model", "metrics", "register", "repair", "simulate",
    "sweep",
]  # fmt: skip

_MODULES = ("algorithms", "fairness", "metrics")  # calling `ffalm.algorithms()` lists the registered algorithms
_MODULE_OF_NAMES = {
    "algorithms": (
        "AFL", "FCFL", "FFALM", "FPFL", "QFFL", "SCAFFOLD", "Algorithm", "Batch", "FairALM", "FairFed", "FedAdam",
        "FedAvg", "FedAvgM", "FedFB", "FedGFT", "FedMinMax", "FedProx", "Lagrangian", "Measure", "ModelVector",
        "Reductions", "Reweighing", "RoundReport", "Sent",
    ),
    "algorithms.registry": ("register",),
    "data.array_parts": ("UnscaledFeaturesWarning",),
    "blind_mode": ("BlindAnswer", "blind", "group_model"),
    "data.types": ("Examples", "Task"),
    "errors": ("UserError",),
    "estimator": ("FairFederatedClassifier",),
    "fair_answer": ("FairAnswer", "fair"),
    "fairness": ("Tally",),
    "auditing.fairness_audit": ("Audit", "audit"),
    "federation": ("Federation", "load"),
    "studies.left_out_sites": ("LeaveOneOut", "leave_one_out"),
    "studies.model_folders": ("load_model",),
    "privacy": ("Privacy",),
    "studies.results": ("Study",),
    "runs": ("Result",),
    "simulation": ("DivergedError", "simulate"),
    "studies.study": ("compare",),
    "studies.sweeps": ("Sweep", "sweep"),
    "targets": ("Target",),
    "targets.score_repair": ("repair",),
    "targets.score_thresholds": ("ScoreThresholds",),
    "trained_models.trained_model": ("TrainedModel",),
}  # fmt: skip


if not typing.TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> typing.Any:
        if name in _MODULES:
            return importlib.import_module(f"ffalm.{name}")
        for module, names in _MODULE_OF_NAMES.items():
            if name in names:
                globals()[name] = value = getattr(importlib.import_module(f"ffalm.{module}"), name)
                return value
        raise AttributeError(f"module 'ffalm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
