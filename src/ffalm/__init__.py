"""ffalm: group-fair federated learning.

Train one classifier over many data owners so that it treats groups of people alike. Everything public is reachable
from here; each name is imported when it is first used, so that `import ffalm` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS = ("algorithms", "fairness", "metrics")  # `ffalm.algorithms()` lists them, `ffalm.metrics.tally(...)` counts
_HOMES = {
    "Algorithm": "ffalm.algorithms",
    "FFALM": "ffalm.algorithms",
    "FPFL": "ffalm.algorithms",
    "FairFed": "ffalm.algorithms",
    "FedAvg": "ffalm.algorithms",
    "register": "ffalm.algorithms.registry",
    "DivergedError": "ffalm.simulation",
    "Result": "ffalm.simulation",
    "simulate": "ffalm.simulation",
    "Examples": "ffalm.data.types",
    "Task": "ffalm.data.types",
    "Federation": "ffalm.federation",
    "load": "ffalm.federation",
    "Privacy": "ffalm.privacy",
    "Tally": "ffalm.fairness",
    "UserError": "ffalm.errors",
}

if TYPE_CHECKING:
    from ffalm import metrics as metrics
    from ffalm.algorithms import FFALM as FFALM
    from ffalm.algorithms import FPFL as FPFL
    from ffalm.algorithms import Algorithm as Algorithm
    from ffalm.algorithms import FairFed as FairFed
    from ffalm.algorithms import FedAvg as FedAvg
    from ffalm.algorithms import algorithms as algorithms
    from ffalm.algorithms import register as register
    from ffalm.data.types import Examples as Examples
    from ffalm.data.types import Task as Task
    from ffalm.errors import UserError as UserError
    from ffalm.fairness import Tally as Tally
    from ffalm.federation import Federation as Federation
    from ffalm.federation import load as load
    from ffalm.privacy import Privacy as Privacy
    from ffalm.simulation import DivergedError as DivergedError
    from ffalm.simulation import Result as Result
    from ffalm.simulation import simulate as simulate


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"ffalm.{name}")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'ffalm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_ROOMS])
