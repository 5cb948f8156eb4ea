"""The pages of results in docs/ hold the numbers of the tables beside them, and those the paper's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import ffalm
from ffalm.report.tables import MINUS, percent, signed, skew
from ffalm.reproduce.frontier import Judged, chosen, entries
from ffalm.reproduce.paper import METRICS, reported

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ALGORITHMS = {"FedAvg": "fedavg", "FairFed": "fairfed", "FPFL": "fpfl", "FFALM": "ffalm"}
PAGES = {
    "utkface-alpha-0.3.csv": "utkface-alpha-0.3.md",
    "utkface-table-2.csv": "README.md",
    "utkface-table-3.csv": "README.md",
    "celeba-subset-table-2.csv": "README.md",
    "celeba-subset-table-3.csv": "README.md",
    "utkface-darker-table-2.csv": "README.md",
    "utkface-darker-fedavg.csv": "README.md",
    "utkface-darker-128px-fedavg.csv": "README.md",
}
tables = pytest.mark.parametrize("table", PAGES)


def _rows(table: str) -> list[dict[str, str]]:
    with open(RESULTS / table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    return rows


@tables
def test_differences_are_ours_less_the_papers(table: str) -> None:
    for row in _rows(table):
        algorithm = ALGORITHMS[row["algorithm"].split(" ")[0]]
        paper = reported(row["data"], float(row["alpha"]), algorithm)
        assert paper is not None
        assert float(row["paper"]) == paper[row["metric"]]
        assert float(row["difference"]) == pytest.approx(float(row["ours"]) - float(row["paper"]))


@tables
def test_the_page_shows_the_numbers_of_the_csv(table: str) -> None:
    page = (RESULTS / PAGES[table]).read_text(encoding="utf-8")
    for row in _rows(table):
        ours, spread = f"{float(row['ours']):.2f}", f"± {float(row['std']):.2f}"
        difference = f"{round(float(row['ours']), 2) - float(row['paper']):+.2f}".replace("-", MINUS)
        lines = [line for line in page.splitlines() if line.startswith(f"| {row['algorithm']} |")]
        assert any(ours in line and spread in line and difference in line for line in lines)


def _judged() -> list[Judged]:
    return [
        Judged(
            row["data"],
            row["algorithm"],
            {metric: float(row[metric]) for metric in METRICS},
            float(row["worst_loss"]),
            int(row["seeds"]),
            int(row["diverged"]),
        )
        for row in _rows("frontier.csv")
    ]


def test_what_is_recommended_is_what_the_published_search_chose() -> None:
    best = chosen(_judged())
    (entry,) = [entry for entry in entries() if entry.label == best]
    settings = {name: value for name, value in entry.settings.items() if name not in ("name", "preset")}
    assert ffalm.FFALM.preset(entry.settings["preset"], **settings) == ffalm.FFALM.recommended()


def test_the_page_shows_the_published_search() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for one in _judged():
        numbers = " / ".join(percent(one.metrics[metric]) for metric in METRICS)
        lines = [line for line in page.splitlines() if line.startswith(f"| {one.label} |")]
        assert any(numbers in line for line in lines), one


def test_the_page_shows_the_published_sensitivities() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for row in _rows("utkface-sensitivity.csv"):
        if row["choice"] == "base":
            continue
        change = signed(float(row["difference"]))
        lines = [line for line in page.splitlines() if line.startswith(f"| {row['choice']}: {row['answer']} |")]
        assert any(change in line for line in lines), row


def test_the_page_shows_what_was_recommended_beside_fedavg() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    titles = {"utkface": "UTKFace", "celeba": "CelebA subset"}
    rows = _rows("recommended.csv")
    for first in rows[:: 2 * len(METRICS)]:
        where = first["data"], first["alpha"]
        mine = [row for row in rows if (row["data"], row["alpha"]) == where]
        fedavg, ours = (
            [float(row["ours"]) for row in mine if row["algorithm"].startswith(name)] for name in ("FedAvg", "FFALM")
        )
        start = f"| {titles[first['data']]}{skew(float(first['alpha']), ', ')} | {first['n']} |"
        (line,) = [line for line in page.splitlines() if line.startswith(start)]
        for numbers in (fedavg, ours):
            assert " / ".join(f"{number:.2f}" for number in numbers) in line
        for one, other in zip(fedavg, ours, strict=True):
            assert signed((other - one) / 100) in line
