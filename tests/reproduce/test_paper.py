"""The paper's numbers, checked here and there against its tables, and its settings against the defaults."""

from __future__ import annotations

import pytest

from ffalm.algorithms import FFALM, FPFL, FairFed
from ffalm.engines import Training
from ffalm.outcome import HEADLINE
from ffalm.reproduce.paper import (
    ALGORITHMS,
    ALPHAS,
    HYPERPARAMETERS,
    METRICS,
    RESULTS,
    STUDY,
    TITLES,
    is_best,
    reported,
)


@pytest.mark.parametrize(
    ("data", "alpha", "algorithm", "numbers"),
    [
        ("celeba", 0.3, "ffalm", (74.06, 28.92, 6.82)),
        ("utkface", 0.3, "fedavg", (86.22, 13.07, 19.12)),
        ("utkface", 0.3, "fairfed", (79.54, 10.80, 17.92)),
        ("celeba", 1.0, "fpfl", (77.54, 36.41, 16.94)),
        ("celeba", 5.0, "ffalm", (78.89, 41.55, 23.08)),
        ("utkface", 5.0, "fpfl", (86.74, 17.38, 7.37)),
    ],
)
def test_numbers_are_those_of_the_tables(
    data: str, alpha: float, algorithm: str, numbers: tuple[float, float, float]
) -> None:
    assert reported(data, alpha, algorithm) == dict(zip(METRICS, numbers, strict=True))


def test_every_cell_of_both_tables_is_there() -> None:
    alphas = {*ALPHAS["table-2"], *ALPHAS["table-3"]}
    assert set(RESULTS) == {(data, alpha) for data in TITLES for alpha in alphas}
    assert all(tuple(rows) == ALGORITHMS for rows in RESULTS.values())
    assert tuple(HEADLINE) == METRICS


def test_there_is_no_number_for_what_the_paper_did_not_run() -> None:
    assert reported("utkface", 0.5, "ffalm") is None
    assert reported("faces", 0.3, "ffalm") is None
    assert reported("utkface", None, "ffalm") is None
    assert reported("utkface", 0.3, "mine") is None


def test_bold_cells_are_the_papers() -> None:
    assert is_best("utkface", 0.3, "fpfl", "accuracy")
    assert is_best("utkface", 0.3, "ffalm", "dpd")
    assert is_best("celeba", 5.0, "fairfed", "eod")
    assert not is_best("celeba", 5.0, "ffalm", "eod")


def test_the_improvement_over_fedavg_is_the_one_the_paper_speaks_of() -> None:
    rows = RESULTS["celeba", 0.3]
    assert rows["fedavg"][1] - rows["ffalm"][1] == pytest.approx(10.62)
    assert rows["fedavg"][2] - rows["ffalm"][2] == pytest.approx(14.29)


def test_the_papers_settings_are_the_defaults_of_the_library() -> None:
    assert FFALM(**HYPERPARAMETERS["ffalm"]) == FFALM()
    assert FPFL(**HYPERPARAMETERS["fpfl"]) == FPFL()
    assert FairFed(**HYPERPARAMETERS["fairfed"]) == FairFed()
    assert Training(**STUDY["training"]) == Training()
