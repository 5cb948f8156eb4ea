"""The page of results in docs/ holds the numbers of the table beside it, and those the paper's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ffalm.report.tables import MINUS
from ffalm.reproduce.paper import reported

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ALGORITHMS = {"FedAvg": "fedavg", "FairFed": "fairfed", "FPFL": "fpfl"}


def _rows() -> list[dict[str, str]]:
    with open(RESULTS / "utkface-alpha-0.3.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_differences_are_ours_less_the_papers() -> None:
    rows = _rows()
    assert len(rows) == 6 * 3
    for row in rows:
        algorithm = ALGORITHMS.get(row["algorithm"], "ffalm")
        paper = reported(row["data"], float(row["alpha"]), algorithm)
        assert paper is not None
        assert float(row["paper"]) == paper[row["metric"]]
        assert float(row["difference"]) == pytest.approx(float(row["ours"]) - float(row["paper"]))


def test_the_page_shows_the_numbers_of_the_csv() -> None:
    page = (RESULTS / "utkface-alpha-0.3.md").read_text(encoding="utf-8")
    for row in _rows():
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['algorithm']} |"))
        assert f"{float(row['ours']):.2f}" in line
        assert f"± {float(row['std']):.2f}" in line
        assert f"{round(float(row['ours']), 2) - float(row['paper']):+.2f}".replace("-", MINUS) in line
