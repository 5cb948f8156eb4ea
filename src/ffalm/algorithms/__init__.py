"""One file an algorithm; each is a frozen dataclass of settings plus pure functions over tensors."""

from ffalm.algorithms.base import Algorithm, Measure, Report, State
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
    "Report",
    "State",
    "algorithm_class",
    "algorithms",
    "register",
]
