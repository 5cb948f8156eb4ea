"""One file per algorithm; each is a frozen dataclass of settings plus pure functions over tensors.

`ffalm.algorithms` is this package and `ffalm.algorithms()` lists the registered algorithms: Python binds the package
to its name in `ffalm` as soon as anything imports it, so the package itself is callable.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ffalm.algorithms.afl import AFL
from ffalm.algorithms.central import Central
from ffalm.algorithms.contract import (
    Algorithm,
    Batch,
    Measure,
    Prepared,
    RoundReport,
    Rows,
    Sent,
    State,
    Task,
)
from ffalm.algorithms.fairalm import FairALM
from ffalm.algorithms.fairfed import FairFed
from ffalm.algorithms.fcfl import FCFL
from ffalm.algorithms.fedadam import FedAdam
from ffalm.algorithms.fedavg import FedAvg
from ffalm.algorithms.fedavgm import FedAvgM
from ffalm.algorithms.fedfb import FedFB
from ffalm.algorithms.fedgft import FedGFT
from ffalm.algorithms.fedminmax import FedMinMax
from ffalm.algorithms.fedprox import FedProx
from ffalm.algorithms.ffalm import FFALM
from ffalm.algorithms.fpfl import FPFL
from ffalm.algorithms.local_only import LocalOnly
from ffalm.algorithms.qffl import QFFL
from ffalm.algorithms.rate_lagrangian import Lagrangian
from ffalm.algorithms.reductions import Reductions
from ffalm.algorithms.registry import algorithm_class, algorithms, register
from ffalm.algorithms.reweighing import Reweighing
from ffalm.algorithms.scaffold import SCAFFOLD
from ffalm.algorithms.vectors import ModelVector, Vectors

__all__ = [
    "AFL",
    "FCFL",
    "FFALM",
    "FPFL",
    "QFFL",
    "SCAFFOLD",
    "Algorithm",
    "Batch",
    "Central",
    "FairALM",
    "FairFed",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedFB",
    "FedGFT",
    "FedMinMax",
    "FedProx",
    "Lagrangian",
    "LocalOnly",
    "Measure",
    "ModelVector",
    "Prepared",
    "Reductions",
    "Reweighing",
    "RoundReport",
    "Rows",
    "Sent",
    "State",
    "Task",
    "Vectors",
    "algorithm_class",
    "algorithms",
    "register",
]


class _CallablePackage(ModuleType):
    def __call__(self) -> dict[str, type[Algorithm]]:
        return algorithms()


sys.modules[__name__].__class__ = _CallablePackage
