"""What the paper says: its settings and its results, from `paper.toml`. It reports no spread over seeds."""

from __future__ import annotations

from typing import Any

from ffalm.report.tables import best
from ffalm.system import toml

METRICS = ("accuracy", "dpd", "eod")

#: Data sets as the paper writes them, in the order of its tables.
TITLES = {"celeba": "CelebA", "utkface": "UTKFace"}

#: The skews of each table; the curves of figure 2 are taken in the runs of table 2.
ALPHAS: dict[str, tuple[float, ...]] = {"table-2": (0.3,), "figure-2": (0.3,), "table-3": (1.0, 5.0)}

SEEDS = 10

ALGORITHMS = ("fedavg", "fairfed", "fpfl", "ffalm")

_PAPER = toml.beside(__file__)

#: Percent: accuracy, demographic parity difference, equal opportunity difference.
RESULTS: dict[tuple[str, float], dict[str, tuple[float, ...]]] = {}
for _data, _alpha, _algorithm, *_row in _PAPER["results"]:
    RESULTS.setdefault((_data, _alpha), {})[_algorithm] = tuple(_row)

STUDY: dict[str, Any] = _PAPER["study"]
HYPERPARAMETERS: dict[str, dict[str, Any]] = _PAPER["hyperparameters"]


def data_title(data: str) -> str:
    """The name of a data set for readers; anything but the paper's two is a smoke run's stand-in."""
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
