"""What the paper says: its settings and its results, in one place.

Dunda and Song, "Fairness-aware Federated Minimax Optimization with Convergence Guarantee", arXiv 2307.04417: the table
of hyper-parameters, and the tables of results at alpha 0.3 (2) and at 1.0 and 5.0 (3). It reports no spread over seeds.
"""

from __future__ import annotations

from typing import Any

from ffalm.report.tables import best

METRICS = ("accuracy", "dpd", "eod")

#: Data sets as the paper writes them, in the order of its tables.
TITLES = {"celeba": "CelebA", "utkface": "UTKFace"}

#: The skews of each table; the curves of figure 2 are taken in the runs of table 2.
ALPHAS: dict[str, tuple[float, ...]] = {"table-2": (0.3,), "figure-2": (0.3,), "table-3": (1.0, 5.0)}

SEEDS = 10

ALGORITHMS = ("fedavg", "fairfed", "fpfl", "ffalm")

#: Percent: accuracy, demographic parity difference, equal opportunity difference.
RESULTS: dict[tuple[str, float], dict[str, tuple[float, float, float]]] = {
    ("celeba", 0.3): {
        "fedavg": (74.66, 39.54, 21.11),
        "fairfed": (73.27, 37.36, 19.50),
        "fpfl": (74.58, 30.87, 9.71),
        "ffalm": (74.06, 28.92, 6.82),
    },
    ("utkface", 0.3): {
        "fedavg": (86.22, 13.07, 19.12),
        "fairfed": (79.54, 10.80, 17.92),
        "fpfl": (86.73, 7.97, 15.85),
        "ffalm": (86.02, 6.60, 13.87),
    },
    ("celeba", 1.0): {
        "fedavg": (76.76, 41.53, 22.66),
        "fairfed": (75.36, 39.37, 21.99),
        "fpfl": (77.54, 36.41, 16.94),
        "ffalm": (77.47, 35.00, 14.00),
    },
    ("celeba", 5.0): {
        "fedavg": (77.36, 41.78, 22.79),
        "fairfed": (77.10, 41.40, 22.24),
        "fpfl": (79.28, 42.99, 22.48),
        "ffalm": (78.89, 41.55, 23.08),
    },
    ("utkface", 1.0): {
        "fedavg": (91.95, 15.59, 15.94),
        "fairfed": (89.14, 13.52, 13.23),
        "fpfl": (87.56, 11.08, 4.38),
        "ffalm": (90.39, 13.89, 3.87),
    },
    ("utkface", 5.0): {
        "fedavg": (92.02, 15.74, 9.35),
        "fairfed": (91.25, 15.50, 10.09),
        "fpfl": (86.74, 17.38, 7.37),
        "ffalm": (88.48, 11.78, 8.43),
    },
}

#: The hyper-parameter table, the number of clients, the rounds and the model, as settings of a study. How long a client
#: trains in a round is no part of it: see `choices`.
STUDY: dict[str, Any] = {
    "partition": {"clients": 10},
    "model": {"name": "resnet18"},
    "training": {
        "rounds": 70,
        "batch_size": 128,
        "lr": 0.05,
        "lr_step": 50,
        "lr_decay": 0.5,
        "clip": 1.0,
        "participation": 1.0,
    },
}
#: The same table's rows of single algorithms; FFALM's stand for the schedule "paper".
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fairfed": {"step": 0.5, "metric": "dpd"},
    "fpfl": {"penalty": 5.0, "dual_lr": 0.5, "tolerance": 0.0},
    "ffalm": {"penalty": 2.0, "dual_lr": 2.0, "dual_lr_growth": 1.05, "penalty_growth": 1.0, "dual_init": 0.0},
}


def data_title(data: str) -> str:
    """What readers call a data set; anything but the paper's two replaces them on a smoke run."""
    return TITLES.get(data, "drawn faces")


def reported(data: str, alpha: float | None, algorithm: str) -> dict[str, float] | None:
    """The paper's numbers in percent by metric, None where it has none."""
    row = RESULTS.get((data, alpha), {}).get(algorithm) if alpha is not None else None
    return None if row is None else dict(zip(METRICS, row, strict=True))


def is_best(data: str, alpha: float, algorithm: str, metric: str) -> bool:
    """Whether a number is the best of its column in the paper's table."""
    rows = RESULTS[data, alpha]
    marks = best([values[METRICS.index(metric)] / 100 for values in rows.values()], metric == "accuracy")
    return marks[list(rows).index(algorithm)]
