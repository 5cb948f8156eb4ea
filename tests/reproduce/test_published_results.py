"""The pages of results in docs/ hold the numbers of the tables beside them, and those the paper's."""

from __future__ import annotations

import csv
import math
import statistics
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import ffalm
from ffalm.report.summary import skew, t_quantile
from ffalm.report.table import MINUS, percent, signed
from ffalm.reproduce.frontier import Judged, chosen, entries
from ffalm.reproduce.metric_forms import piecewise
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


def test_the_page_shows_fedavg_under_every_choice() -> None:
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for row in _rows("utkface-fedavg-choices.csv"):
        if row["gaps_of"] == "rows" and row["choices"] != "128 px":
            continue  # told for machines alone
        paper = reported("utkface", float(row["alpha"]), "fedavg")
        assert paper is not None
        ours = [round(float(row[metric]), 2) for metric in METRICS]
        gaps = [f"{one - paper[metric]:+.2f}".replace("-", MINUS) for one, metric in zip(ours, METRICS, strict=True)]
        shown = f"| {row['seeds']} | {' / '.join(f'{one:.2f}' for one in ours)} | {' / '.join(gaps)} |"
        assert any(shown in line for line in lines), row


RACES = ("White", "Black", "Asian", "Indian", "Other")
Run = tuple[str, str, float, int]


@cache
def _by_race() -> dict[Run, np.ndarray]:
    """The test rows of every run, by prediction, label and race."""
    found: dict[Run, np.ndarray] = {}
    for row in _rows("utkface-races.csv"):
        run = row["partition"], row["start"], float(row["alpha"]), int(row["seed"])
        counts = found.setdefault(run, np.zeros((2, 2, len(RACES)), dtype=np.int64))
        counts[int(row["predicted"]), int(row["label"]), RACES.index(row["race"])] = int(row["rows"])
    return found


def _parted(counts: np.ndarray, apart: tuple[str, ...]) -> np.ndarray:
    """The counts of two groups: some races, and the rest."""
    mine = np.isin(RACES, apart)
    return np.stack([counts[..., ~mine].sum(-1), counts[..., mine].sum(-1)], -1)


def _gaps(counts: np.ndarray, form: str) -> tuple[float, float]:
    """DPD and EOD in percent, of all rows together or averaged over pieces of them."""
    if form == "pieces":
        found = piecewise(counts.tolist())
        return 100 * found["dpd"], 100 * found["eod"]
    dpd = abs(np.subtract(*counts[1].sum(0) / counts.sum((0, 1))))
    eod = abs(np.subtract(*counts[1, 1] / counts[:, 1].sum(0)))
    return float(100 * dpd), float(100 * eod)


def _mean_gaps(apart: tuple[str, ...], form: str, partition: str, start: str, alpha: float) -> np.ndarray:
    runs = [counts for run, counts in _by_race().items() if run[:3] == (partition, start, alpha)]
    return np.asarray(np.mean([_gaps(_parted(counts, apart), form) for counts in runs], 0))


@pytest.mark.parametrize(
    ("choices", "partition", "start", "alphas"),
    [
        ("split by race", "balanced", "scratch", (0.3,)),
        ("even clients, labels as they are", "even", "scratch", (0.3, 1.0, 5.0)),
        ("weights of the CelebA subset", "balanced", "celeba", (0.3, 1.0, 5.0)),
    ],
)
def test_fedavgs_gaps_follow_from_the_counts_by_race(
    choices: str, partition: str, start: str, alphas: tuple[float, ...]
) -> None:
    for row in _rows("utkface-fedavg-choices.csv"):
        alpha = float(row["alpha"])
        if row["choices"] != choices:
            continue
        assert alpha in alphas
        runs = [counts for run, counts in _by_race().items() if run[:3] == (partition, start, alpha)]
        assert int(row["seeds"]) == len(runs)
        right = [100 * (one[0, 0].sum() + one[1, 1].sum()) / one.sum() for one in runs]
        assert float(row["accuracy"]) == pytest.approx(np.mean(right))
        found = _mean_gaps(("Black", "Indian"), row["gaps_of"], partition, start, alpha)
        assert found == pytest.approx([float(row["dpd"]), float(row["eod"])])


def test_one_way_alone_to_part_the_races_comes_near_the_papers_gaps() -> None:
    paper = reported("utkface", 0.3, "fedavg")
    assert paper is not None
    ways = [apart for size in (1, 2) for apart in combinations(RACES, size)]
    assert len(ways) == 15
    goal = np.array([paper["dpd"], paper["eod"]])
    far = {
        (apart, form): np.abs(_mean_gaps(apart, form, "balanced", "scratch", 0.3) - goal).max()
        for apart in ways
        for form in ("pieces", "rows")
    }
    assert [way for way, gap in far.items() if gap <= 2] == [(("Black", "Indian"), "pieces")]
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for apart, form in ((("Black", "Indian"), "pieces"), (("Black",), "rows"), (("Black",), "pieces")):
        found = _mean_gaps(apart, form, "balanced", "scratch", 0.3)
        assert " / ".join(f"{one:.2f}" for one in found) in page


@pytest.mark.parametrize(("table", "data"), [("utkface", "UTKFace"), ("celeba-subset", "CelebA subset")])
def test_the_page_shows_the_last_rounds_beside_the_best(table: str, data: str) -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    rows = _rows(f"{table}-rounds.csv")
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        shown = " | ".join(f"{float(row[side]):.2f}" for row in mine for side in ("last", "best"))
        assert f"| {algorithm}, {data} | {shown} |" in page


def test_what_recommended_takes_off_is_told_as_the_csv_has_it() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    found = {(row["data"], row["alpha"], row["algorithm"], row["metric"]): row for row in _rows("recommended.csv")}
    ours, base = (float(found["celeba", "0.3", name, "dpd"]["ours"]) for name in ("FFALM (recommended)", "FedAvg"))
    assert f"{base - ours:.1f} off DPD on the CelebA subset" in page
    assert f"in DPD on the CelebA subset ({base - ours:.1f})" in page


def test_one_setting_alone_is_fairer_in_both_gaps_than_fedavg_and_fpfl_on_utkface() -> None:
    judged = [one for one in _judged() if one.data == "utkface" and one.stable]
    fedavg, fpfl = (next(one for one in judged if one.label == name) for name in ("FedAvg", "FPFL"))
    fairer = [one for one in judged if one.fairer_than(fedavg) and one.fairer_than(fpfl)]
    assert [one.label for one in fairer] == ["FFALM, released-code, all rows, dual within 1"]
    assert fairer[0].metrics["accuracy"] > fedavg.metrics["accuracy"]
    others = [one for one in judged if one.metrics["dpd"] < fpfl.metrics["dpd"] and one not in fairer]
    assert len(others) == 3
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert "On UTKFace one is fairer in both gaps than FedAvg and FPFL" in page
    assert "and three more in DPD alone" in page


@cache
def _runs(study: str, alpha: float, algorithm: str) -> dict[int, dict[str, str]]:
    """Every run of an algorithm by its seed."""
    mine = [row for row in _rows("runs.csv") if (row["study"], row["algorithm"]) == (study, algorithm)]
    return {int(row["seed"]): row for row in mine if float(row["alpha"]) == alpha}


def _paired(study: str, alpha: float, algorithm: str, other: str = "fedavg") -> dict[str, str]:
    """By how many points an algorithm differs from another on the same seeds, with the 95 % interval."""
    runs, base = _runs(study, alpha, algorithm), _runs(study, alpha, other)
    found = {}
    for metric in METRICS:
        apart = [float(runs[seed][f"test_{metric}"]) - float(base[seed][f"test_{metric}"]) for seed in runs]
        mean, half = statistics.fmean(apart), t_quantile(len(apart) - 1) * statistics.stdev(apart) / len(apart) ** 0.5
        found[metric] = f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})".replace("-", MINUS)
    return found


NAMES = {
    "FairFed": "fairfed",
    "FPFL": "fpfl",
    "FFALM (paper)": "ffalm-paper",
    "FFALM (released-code)": "ffalm-released-code",
}


@pytest.mark.parametrize(("study", "alpha"), [("utkface", 0.3), ("celeba", 1.0), ("celeba", 5.0)])
def test_differences_from_fedavg_follow_from_the_runs(study: str, alpha: float) -> None:
    before = "" if study == "utkface" else f"{skew(alpha)}: "
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for label, algorithm in NAMES.items():
        assert f"| {before}{label} | {' | '.join(_paired(study, alpha, algorithm).values())} |" in page


def test_what_recommended_changes_follows_from_the_runs() -> None:
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    worst, largest, count = -math.inf, 0.0, 0
    for study, title in (("utkface", "UTKFace"), ("celeba", "CelebA subset")):
        for alpha in (0.3, 1.0, 5.0):
            runs, base = (_runs(study, alpha, name) for name in ("ffalm-recommended", "fedavg"))
            (line,) = [line for line in lines if line.startswith(f"| {title}{skew(alpha, ', ')} | {len(runs)} |")]
            assert line.endswith(f"| {' | '.join(_paired(study, alpha, 'ffalm-recommended').values())} |")
            for seed, run in runs.items():
                worst = max(worst, float(base[seed]["test_accuracy"]) - float(run["test_accuracy"]))
                largest, count = max(largest, float(run["largest_dual"])), count + 1
    assert (count, f"{worst:.1f}", f"{largest:.2f}") == (35, "2.0", "0.56")


def test_single_runs_are_as_the_page_says() -> None:
    """Sentences about runs, not means: the spread of FedAvg, its best rounds, and the runs that collapse."""
    fedavg = _runs("utkface-grouping-darker_vs_rest", 0.3, "fedavg")
    accuracies = [float(run["test_accuracy"]) for run in fedavg.values()]
    assert (len(fedavg), f"{min(accuracies):.1f}", f"{max(accuracies):.1f}") == (16, "79.7", "88.8")
    gaps = [float(run["test_eod"]) for run in fedavg.values()]
    assert (f"{min(gaps):.1f}", f"{max(gaps):.1f}") == ("0.2", "21.5")
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for kind in ("last", "best"):
        means = [statistics.fmean(float(run[f"{kind}_{metric}"]) for run in fedavg.values()) for metric in METRICS]
        assert " / ".join(f"{mean:.2f}" for mean in means) in page
    printed = [run for alpha in (1.0, 5.0) for run in _runs("celeba", alpha, "ffalm-paper").values()]
    low = [run for run in printed if float(run["test_accuracy"]) < 61]
    assert (len(printed), len(low), round(max(float(run["largest_dual"]) for run in printed))) == (10, 4, 126)
    fairfed = [round(float(run["test_accuracy"])) for run in _runs("utkface", 0.3, "fairfed").values()]
    assert sum(accuracy < 40 for accuracy in fairfed) == 6
    assert sorted(map(int, ["39", "78", "36", "86", "31", "79", "27", "30", "37", "72"])) == sorted(fairfed)
    plain = _runs("utkface-partition-plain", 0.3, "ffalm-paper")
    assert max(float(run["largest_dual"]) for run in plain.values()) == pytest.approx(9434, abs=0.5)
