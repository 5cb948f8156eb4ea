"""The published leaderboard is what its stored choices give."""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from ffalm.leaderboard.board import Board
from ffalm.leaderboard.leaderboard_report import by_cell, of_cell, overall
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import seeds_by_cell, standings
from ffalm.leaderboard.stored_choices import read_choices
from ffalm.report.rendering import to_markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"


BOARDS = {"tables": "leaderboard", "faces": "leaderboard-faces"}


@cache
def choices_of_board(board: str) -> list[MethodChoice]:
    return list(read_choices(RESULTS / f"{BOARDS[board]}-choices.csv.gz"))


@pytest.mark.parametrize("board", BOARDS)
def test_ranks_and_means_follow_from_the_choices(board: str) -> None:
    found = standings(choices_of_board(board))
    rows = list(csv.DictReader((RESULTS / f"{BOARDS[board]}.csv").read_text().splitlines()))
    assert len(rows) == len(found)
    for row, one in zip(rows, found, strict=True):
        assert (row["cell"], row["target"], row["method"], row["problem"]) == (
            one.cell,
            one.target,
            one.method,
            one.problem,
        )
        for name in ("accuracy", "gap", "held", "hypervolume", "rank", "p"):
            assert float(row[name] or "nan") == pytest.approx(getattr(one, name), nan_ok=True)


def holm_by_definition(ps: list[float]) -> list[float]:
    """The smallest level at which the sequential test rejects each: the smallest p at level / number, and so on."""
    order = sorted(ps)
    return [max(min(1.0, one * (len(ps) - place)) for place, one in enumerate(order) if one <= p) for p in ps]


@pytest.mark.parametrize("board", BOARDS)
def test_pandas_and_scipy_find_the_same_ranks_and_tests(board: str) -> None:
    """Means over seeds by pandas, paired t-tests by scipy (the sign test if all differences are the same)."""
    choices = pd.read_csv(RESULTS / f"{BOARDS[board]}-choices.csv.gz")
    published = pd.read_csv(RESULTS / f"{BOARDS[board]}.csv")
    for (cell, target), own in choices.groupby(["cell", "target"]):
        by_seed = own.pivot(index="seed", columns="method", values="accuracy")
        means = own.groupby("method")[["accuracy", "gap", "held", "hypervolume"]].agg(
            lambda one: one.mean(skipna=False)
        )
        means["spread"] = by_seed.std().where(by_seed.notna().all())
        sound = own.groupby("method")["degenerate"].count() == 0
        qualified = means.accuracy.notna() & sound & (means.gap <= float(target.split()[-1]) + 1e-9)
        good = means[qualified].sort_values("accuracy", ascending=False)
        means["rank"] = len(good) + (len(means) - len(good) + 1) / 2
        means.loc[good.index, "rank"] = good.accuracy.round(12).rank(ascending=False)
        means["p"] = math.nan
        if len(good):
            apart = [by_seed[good.index[0]] - by_seed[name] for name in good.index[1:]]
            seeds = len(by_seed)
            ps = [
                float(stats.ttest_1samp(one, 0).pvalue)
                if one.std() > 1e-9
                else float(stats.binomtest(seeds, seeds).pvalue if abs(one.mean()) > 1e-9 else 1)
                for one in apart
            ]
            means.loc[good.index, "p"] = [1.0, *holm_by_definition(ps)]
        found = published[(published.cell == cell) & (published.target == target)].set_index("method")
        assert set(found.index) == set(means.index)
        for name in ("accuracy", "spread", "gap", "held", "hypervolume", "rank", "p"):
            expected = means.loc[found.index, name].tolist()
            assert found[name].tolist() == pytest.approx(expected, rel=0, abs=2e-6, nan_ok=True), (cell, target, name)


@pytest.mark.parametrize("name", BOARDS)
def test_the_page_shows_these_tables(name: str) -> None:
    page, board, choices = (RESULTS / f"{BOARDS[name]}.md").read_text(), Board.load(name), choices_of_board(name)
    found = standings(choices)
    assert to_markdown(overall(board, found)) in page
    assert to_markdown(by_cell(board, found)) in page
    for cell, seeds in seeds_by_cell(choices).items():
        assert to_markdown(of_cell(board, found, cell, seeds)) in page
