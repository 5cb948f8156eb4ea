"""Every table of the pages in docs/results is recomputed from the CSV files beside it: place, heads, cells and bold."""

from __future__ import annotations

import math
import statistics

import pytest
from tests.reproduce.published import (
    ALGORITHMS,
    TITLES,
    Matrix,
    PageTable,
    judged,
    majority,
    matrix,
    page,
    paired,
    points,
    rows,
    runs,
    slashed,
    tables,
)

from ffalm.report.rendering import to_markdown
from ffalm.report.summary import HEADS, AlgorithmSummary, Statistic, more_is_better, skew
from ffalm.report.tables import best
from ffalm.reproduce.constraint_diagnostics import Diagnostics
from ffalm.reproduce.frontier import on_frontier
from ffalm.reproduce.paper import METRICS, reported
from ffalm.reproduce.paper_comparison import Line, wide
from ffalm.targets.degenerate import degenerate_reason

#: How runs.csv calls the algorithms of the tables.
KEYS = {
    "FedAvg": "fedavg",
    "FairFed": "fairfed",
    "FairFed (authors)": "fairfed-authors",
    "FPFL": "fpfl",
    "FFALM (paper)": "ffalm-paper",
    "FFALM (released-code)": "ffalm-released-code",
    "FFALM (safe)": "ffalm-safe",
}


def _collapsed(study: str, alpha: float, label: str) -> int:
    """Runs that predict one label for everybody: both gaps are exactly 0."""
    found = runs(study, alpha, KEYS[label]).values()
    return sum(float(run["test_dpd"]) == 0 == float(run["test_eod"]) for run in found)


def _lines(table: str, study: str, alpha: float) -> list[Line]:
    """The rows of a published CSV at one skew, with the best of each column marked by the rule of all tables."""
    mine = [row for row in rows(table) if float(row["alpha"]) == alpha]
    lines = []
    for label in dict.fromkeys(row["algorithm"] for row in mine):
        found = {row["metric"]: row for row in mine if row["algorithm"] == label}
        data, n = found["dpd"]["data"], int(found["dpd"]["n"])
        accuracy = float(found["accuracy"]["ours"]) / 100
        reason = degenerate_reason(_collapsed(study, alpha, label), n, accuracy, majority(data))
        cells = {
            metric: Statistic(float(row["ours"]) / 100, float(row["std"]) / 100, None, n, 0)
            for metric, row in found.items()
        }
        algorithm = ALGORITHMS[label.split(" ")[0]]
        summary = AlgorithmSummary(alpha, label, n, 0, cells, reason)
        diagnostics = Diagnostics(None, None, None, 0, 0.0, n)
        lines.append(Line(data, algorithm, summary, diagnostics, reported(data, alpha, algorithm)))
    for metric in METRICS:
        values = [line.summary.cells[metric].mean for line in lines]
        marks = best(values, more_is_better(metric), [bool(line.summary.degenerate) for line in lines])
        for line, mark in zip(lines, marks, strict=True):
            line.summary.cells[metric] = Statistic(**{**vars(line.summary.cells[metric]), "best": mark})
    return lines


def _beside_the_paper(table: str, study: str, alpha: float) -> Matrix:
    text = to_markdown(wide(_lines(table, study, alpha), "")).splitlines()
    return matrix([line for line in text if line.startswith("|")])


def _seeds(table: str) -> int:
    (found,) = {int(row["n"]) for row in rows(table)}
    return found


def _paper_tables() -> list[PageTable]:
    found = []
    for data, study in (("utkface", "utkface"), ("celeba-subset", "celeba")):
        second, third = f"{data}-table-2.csv", f"{data}-table-3.csv"
        head = f"{TITLES[study]}, {skew(0.3)} (table 2), {_seeds(second)} seeds"
        found.append(PageTable(head, "", _beside_the_paper(second, study, 0.3)))
        head = f"{TITLES[study]}, {skew(1.0)} and 5 (table 3), {_seeds(third)} seeds"
        found += [PageTable(head, skew(alpha), _beside_the_paper(third, study, alpha)) for alpha in (1.0, 5.0)]
    return found


def _paired_table(study: str, alphas: tuple[float, ...]) -> Matrix:
    """Differences from FedAvg by algorithm, named with the skew where there are several."""
    labels = ["FairFed", "FPFL", "FFALM (paper)", "FFALM (released-code)"]
    named = [(alpha, label) for alpha in alphas for label in labels]
    before = {alpha: f"{skew(alpha)}: " if len(alphas) > 1 else "" for alpha in alphas}
    body = [[before[alpha] + label, *paired(study, alpha, KEYS[label])] for alpha, label in named]
    return [["", "Accuracy", "DPD", "EOD"], *body]


def _sensitivities() -> Matrix:
    found = [["Choice", *(HEADS[metric] for metric in METRICS), "Seeds"]]
    published = rows("utkface-sensitivity.csv")
    for first in published[:: len(METRICS)]:
        mine = [row for row in published if all(row[key] == first[key] for key in ("algorithm", "choice", "answer"))]
        seeds = int(first["n"])
        if first["choice"] == "base":
            spreads = [
                statistics.stdev(
                    float(runs("utkface", 0.3, KEYS[first["answer"]])[seed][f"test_{metric}"]) for seed in range(seeds)
                )
                for metric in METRICS
            ]
            cells = [f"{100 * float(row['mean']):.2f} ± {std:.2f}" for row, std in zip(mine, spreads, strict=True)]
            found.append([f"{first['answer']}, base", *cells, str(seeds)])
            continue
        cells = []
        for row in mine:
            change, low, high = (float(row[key]) for key in ("difference", "low", "high"))
            clear = not low <= 0.0 <= high
            value = points(100 * change)
            cells.append(f"{f'**{value}**' if clear else value} ± {100 * (high - change):.2f}")
        found.append([f"{first['choice']}: {first['answer']}", *cells, str(seeds)])
    return found


#: The names of FedAvg's choices in the CSV, and in the page's tables in their order.
CHOICES = {
    "base": "balanced partition, 64 px, one local epoch, a split a seed",
    "split by race": "ten other splits, in which all five races keep their shares",
    "base and split by race": "**those 26 runs together**",
    "one split": "one split for all seeds (`--split fixed`)",
    "three local epochs": "three local epochs (`--local-epochs 3`)",
    "128 px": "128 px, gaps of all rows together",
    "128 px, released head": "128 px with the released code's head (`--head fairalm`)",
    "even clients, labels as they are": "clients even in size, labels as they are (`--partition even`)",
    "plain partition": "`--partition plain`",
    "weights of the CelebA subset": "starting from weights trained on the CelebA subset",
}


def _choice(name: str, alpha: float) -> list[str]:
    """Seeds, means, and means less the paper's; gaps averaged over pieces where there are such."""
    form = "rows" if name == "128 px" else "pieces"
    (row,) = [
        row
        for row in rows("utkface-fedavg-choices.csv")
        if (row["choices"], float(row["alpha"]), row["gaps_of"]) == (name, alpha, form)
    ]
    paper = reported("utkface", alpha, "fedavg")
    assert paper is not None
    ours = [round(float(row[metric]), 2) for metric in METRICS]
    gaps = " / ".join(points(one - paper[metric]) for one, metric in zip(ours, METRICS, strict=True))
    return [row["seeds"], slashed(ours), gaps]


def _choices_table() -> Matrix:
    body = [[text, *_choice(name, 0.3)] for name, text in CHOICES.items()]
    return [["FedAvg", "Seeds", "Accuracy / DPD / EOD", "less the paper's"], *body]


def _natural_labels_table() -> Matrix:
    names = ("even clients, labels as they are", "plain partition", "weights of the CelebA subset")
    head = ["FedAvg", *(text for alpha in (1.0, 5.0) for text in ("Seeds", skew(alpha), "less the paper's"))]
    return [head, *([CHOICES[name], *_choice(name, 1.0), *_choice(name, 5.0)] for name in names)]


def _rounds_table() -> Matrix:
    found = [["Algorithm", *(f"{HEADS[metric]} {side}" for metric in METRICS for side in ("last", "best"))]]
    for file, data in (("utkface", "utkface"), ("celeba-subset", "celeba")):
        published = rows(f"{file}-rounds.csv")
        for algorithm in dict.fromkeys(row["algorithm"] for row in published):
            mine = {row["metric"]: row for row in published if row["algorithm"] == algorithm}
            cells = [f"{float(mine[metric][side]):.2f}" for metric in METRICS for side in ("last", "best")]
            found.append([f"{algorithm}, {TITLES[data]}", *cells])
    return found


def _frontier_table() -> Matrix:
    found: Matrix = [["", *TITLES.values()]]
    published = judged()
    for label in dict.fromkeys(one.label for one in published):
        cells = []
        for data in TITLES:
            (one,) = [one for one in published if (one.data, one.label) == (data, label)]
            numbers = slashed([100 * one.metrics[metric] for metric in METRICS])
            shown = f"**{numbers}**" if on_frontier(one, published) else numbers
            cells.append(shown if one.stable else f"{shown} (not stable)")
        found.append([label, *cells])
    return found


def _recommended_table() -> Matrix:
    found = [["", "Seeds", "FedAvg", "`recommended`", "Accuracy", "DPD", "EOD"]]
    for data, title in TITLES.items():
        for alpha in (0.3, 1.0, 5.0):
            mine = [row for row in rows("recommended.csv") if (row["data"], float(row["alpha"])) == (data, alpha)]
            means = [
                slashed([float(row["ours"]) for row in mine if row["algorithm"] == label])
                for label in ("FedAvg", "FFALM (recommended)")
            ]
            changes = paired(data, alpha, "ffalm-recommended")
            found.append([f"{title}{skew(alpha, ', ')}", mine[0]["n"], *means, *changes])
    return found


def _expected() -> list[PageTable]:
    """The tables of the main page in order."""
    utk_2, utk_1, utk_5, celeba_2, celeba_1, celeba_5 = _paper_tables()
    nearest, one = "Which choices come nearest to the paper", "One setting for both data sets"
    return [
        utk_2,
        PageTable(utk_2.section, "", _paired_table("utkface", (0.3,))),
        utk_1,
        utk_5,
        celeba_2,
        celeba_1,
        celeba_5,
        PageTable(celeba_5.section, "", _paired_table("celeba", (1.0, 5.0))),
        PageTable(nearest, "", _sensitivities()),
        PageTable(nearest, "", _beside_the_paper("utkface-darker-table-2.csv", "utkface-grouping-darker_vs_rest", 0.3)),
        PageTable(nearest, "", _choices_table()),
        PageTable(nearest, "", _rounds_table()),
        PageTable(nearest, "", _natural_labels_table()),
        PageTable(one, "", _frontier_table()),
        PageTable(one, "", _recommended_table()),
    ]


@pytest.mark.parametrize("place", range(15))
def test_each_table_of_the_page_is_that_of_the_csv_cell_by_cell(place: int) -> None:
    shown, expected = tables(page())[place], _expected()[place]
    assert (shown.section, shown.skew) == (expected.section, expected.skew)
    assert shown.cells == expected.cells


def test_the_page_has_no_other_table() -> None:
    assert len(tables(page())) == len(_expected())


def test_the_page_of_one_split_shows_its_csv_cell_by_cell() -> None:
    table, diagnostics = tables(page("utkface-alpha-0.3.md"))
    assert table.skew == diagnostics.skew == ""
    lines = _lines("utkface-alpha-0.3.csv", "utkface-one-split", 0.3)
    text = to_markdown(wide(lines, "")).splitlines()
    assert table.cells == matrix([line for line in text if line.startswith("|")])
    published = {row["algorithm"]: row for row in rows("utkface-alpha-0.3.csv")}
    assert diagnostics.cells[0] == ["Algorithm", "Largest dual", "Seed", "Round", "Runs past 1", "Negative share"]
    assert [row[0] for row in diagnostics.cells[1:]] == list(published)
    for row in diagnostics.cells[1:]:
        dual, share = published[row[0]]["largest_dual"], published[row[0]]["largest_negative_share"]
        assert row[1] == (f"{float(dual):.3g}" if dual else "none")
        assert row[5] == f"{100 * float(share):.0f} %"


@pytest.mark.parametrize(
    "table",
    [
        *("utkface-alpha-0.3.csv", "utkface-table-2.csv", "utkface-table-3.csv", "celeba-subset-table-2.csv"),
        *("celeba-subset-table-3.csv", "utkface-darker-table-2.csv", "recommended.csv"),
    ],
)
def test_differences_are_ours_less_the_papers(table: str) -> None:
    for row in rows(table):
        paper = reported(row["data"], float(row["alpha"]), ALGORITHMS[row["algorithm"].split(" ")[0]])
        assert paper is not None
        assert float(row["paper"]) == paper[row["metric"]]
        assert float(row["difference"]) == pytest.approx(float(row["ours"]) - float(row["paper"]))


@pytest.mark.parametrize(
    ("table", "study"),
    [
        ("utkface-table-2.csv", "utkface"),
        ("utkface-table-3.csv", "utkface"),
        ("celeba-subset-table-2.csv", "celeba"),
        ("celeba-subset-table-3.csv", "celeba"),
    ],
)
def test_means_and_spreads_follow_from_the_runs(table: str, study: str) -> None:
    for row in rows(table):
        found = runs(study, float(row["alpha"]), KEYS[row["algorithm"]]).values()
        values = [float(run[f"test_{row['metric']}"]) for run in found]
        assert len(values) == int(row["n"])
        assert statistics.fmean(values) == pytest.approx(float(row["ours"]), abs=1e-5)
        assert statistics.stdev(values) == pytest.approx(float(row["std"]), abs=1e-5)
        assert not math.isnan(float(row["ours"]))
