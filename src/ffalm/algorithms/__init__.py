"""One file an algorithm; each is a frozen dataclass of settings plus pure functions over tensors.

`ffalm.algorithms` is this room and `ffalm.algorithms()` lists who is in it: Python binds the package to its name in
`ffalm` as soon as anything imports it, so the package itself answers the call.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ffalm.algorithms.base import Algorithm, Measure, Prepared, Report, State
from ffalm.algorithms.fairfed import FairFed
from ffalm.algorithms.fedavg import FedAvg
from ffalm.algorithms.ffalm import FFALM
from ffalm.algorithms.fpfl import FPFL
from ffalm.algorithms.registry import algorithm_class, algorithms, register

__all__ = [
    "FFALM",
    "FPFL",
    "Algorithm",
    "FairFed",
    "FedAvg",
    "Measure",
    "Prepared",
    "Report",
    "State",
    "algorithm_class",
    "algorithms",
    "register",
]


class _Room(ModuleType):
    def __call__(self) -> dict[str, type[Algorithm]]:
        return algorithms()


sys.modules[__name__].__class__ = _Room
