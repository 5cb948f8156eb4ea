"""The pages in docs/results read back: their tables cell by cell, and the runs behind them."""

from __future__ import annotations

import csv
import re
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ffalm.report.summary import t_quantile
from ffalm.report.tables import signed
from ffalm.reproduce.frontier import Judged
from ffalm.reproduce.paper import METRICS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TITLES = {"utkface": "UTKFace", "celeba": "CelebA subset"}
ALGORITHMS = {"FedAvg": "fedavg", "FairFed": "fairfed", "FPFL": "fpfl", "FFALM": "ffalm"}
RACES = ("White", "Black", "Asian", "Indian", "Other")
PAPER_PAGES = ("paper.md", "paper-choices.md", "paper-settings.md")

Matrix = list[list[str]]


@dataclass(frozen=True)
class PageTable:
    """A table of a page: the heading of its section, the line above it where that is a skew, and all cells."""

    section: str
    skew: str
    cells: Matrix  # the header first


def page(*names: str) -> str:
    """The text of some pages; of all about the paper where none is named."""
    return "\n".join((RESULTS / name).read_text(encoding="utf-8") for name in names or PAPER_PAGES)


def flat(*names: str) -> str:
    """The same on one line, so that sentences are found wherever their lines break."""
    return " ".join(page(*names).split())


def tables(text: str) -> list[PageTable]:
    """Every pipe table of a page, in order."""
    found: list[PageTable] = []
    section, last, lines = "", "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
            continue
        if lines:
            found.append(PageTable(section, last if re.fullmatch(r"\S = \S+", last) else "", matrix(lines)))
            lines = []
            last = ""
        if line.startswith("#"):
            section = line.lstrip("# ")
        last = line.strip() or last
    return found


def matrix(lines: list[str]) -> Matrix:
    """The cells of a pipe table without its rule, escapes undone."""
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in (cells[0], *cells[2:])]


@cache
def rows(table: str) -> list[dict[str, str]]:
    """A CSV file of docs/results."""
    with open(RESULTS / table, encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert found
    return found


@cache
def runs(study: str, alpha: float, algorithm: str) -> dict[int, dict[str, str]]:
    """Every run of an algorithm by its seed."""
    mine = [row for row in rows("runs.csv") if (row["study"], row["algorithm"]) == (study, algorithm)]
    return {int(row["seed"]): row for row in mine if float(row["alpha"]) == alpha}


def differences(study: str, alpha: float, algorithm: str, other: str = "fedavg") -> dict[str, tuple[float, float]]:
    """By how many points an algorithm differs from another on the same seeds, with half the 95 % interval."""
    mine, base = runs(study, alpha, algorithm), runs(study, alpha, other)
    found = {}
    for metric in METRICS:
        apart = [float(mine[seed][f"test_{metric}"]) - float(base[seed][f"test_{metric}"]) for seed in mine]
        half = t_quantile(len(apart) - 1) * statistics.stdev(apart) / len(apart) ** 0.5
        found[metric] = (statistics.fmean(apart), half)
    return found


def points(value: float) -> str:
    """Percentage points with their sign, as pages write them."""
    return signed(value / 100)


def paired(study: str, alpha: float, algorithm: str, other: str = "fedavg") -> list[str]:
    """The differences as the pages write them."""
    found = differences(study, alpha, algorithm, other).values()
    return [f"{points(mean)} ({points(mean - half)} to {points(mean + half)})" for mean, half in found]


def slashed(values: list[float]) -> str:
    """Accuracy / DPD / EOD in percent."""
    return " / ".join(f"{value:.2f}" for value in values)


def judged() -> list[Judged]:
    """The published search for settings."""
    return [
        Judged(
            row["data"],
            row["algorithm"],
            {metric: float(row[metric]) for metric in METRICS},
            float(row["worst_loss"]),
            int(row["seeds"]),
            int(row["diverged"]),
        )
        for row in rows("frontier.csv")
    ]


@cache
def by_race() -> dict[tuple[str, str, float, int], np.ndarray]:
    """The test rows of FedAvg's runs on UTKFace, by prediction, label and race."""
    found: dict[tuple[str, str, float, int], np.ndarray] = {}
    for row in rows("utkface-races.csv"):
        run = row["partition"], row["start"], float(row["alpha"]), int(row["seed"])
        counts = found.setdefault(run, np.zeros((2, 2, len(RACES)), dtype=np.int64))
        counts[int(row["predicted"]), int(row["label"]), RACES.index(row["race"])] = int(row["rows"])
    return found


@cache
def majority(data: str) -> float:
    """The share of the most frequent label among the test rows; NaN where no counts are published."""
    if data != "utkface":
        return float("nan")
    return statistics.fmean(float(counts.sum((0, 2)).max() / counts.sum()) for counts in by_race().values())
