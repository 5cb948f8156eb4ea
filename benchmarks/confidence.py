"""What the confidence of a target costs and gains, on the runs of a leaderboard.

    python benchmarks/confidence.py FOLDER

FOLDER is that of `ffalm leaderboard`, of the board of tables. Nothing is trained: `ffalm compare --target` chooses from
the stored scores of every cell and seed again, with each confidence, and takes its row's place on the board. Figures
are of test rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ffalm.config import entry_of
from ffalm.leaderboard.board import Board, Cell, Method
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import standings, totals
from ffalm.leaderboard.stored_choices import join_choices
from ffalm.report.rendering import to_markdown
from ffalm.report.tables import Column, Section, Table, row
from ffalm.studies.results import Study
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.target import Target

LEVELS = {"0.5 (no margin)": 0.5, "0.8": 0.8, "default (0.8, less where rows are few)": None, "0.9": 0.9, "0.95": 0.95}
OURS = "answer"


def choices(folder: Path, cell: Cell, method: Method, target: Target) -> dict[str, list[MethodChoice]]:
    """The choices of each seed and their results on test rows, by the confidence of the choice."""
    study = Study.load(folder / cell.slug)
    labels = {entry_of(key, values).label for key, values in method.sections(target).items()}
    found: dict[str, list[MethodChoice]] = {name: [] for name in LEVELS}
    for seed in sorted({run.seed for run in study.results}):
        runs = [
            FinishedRun(run.label, run.seed, run.alpha, run.place, study.scores(run))
            for run in study.results
            if run.seed == seed and run.label in labels and run.diverged is None
        ]
        for name, level in LEVELS.items():
            scored = answer_of(runs, target, method.repair, study.record.group_names, level).scored
            accuracy, gap = scored.metrics["accuracy"], scored.metrics[target.bounds[0].metric]
            held = target.meets(scored.metrics)
            found[name].append(
                MethodChoice(cell.name, str(target), method.name, seed, accuracy, gap, held, scored.degenerate, "", 0.0)
            )
    return found


def firsts(board: Sequence[MethodChoice], own: Sequence[MethodChoice]) -> dict[str, int]:
    """The number of cells in which our row is first or tied with these choices, by target."""
    by_place = {(one.cell, one.target, one.seed): one for one in own}
    swapped = [
        replace(by_place[one.cell, one.target, one.seed], hypervolume=one.hypervolume) if one.method == OURS else one
        for one in board
    ]
    return {one.target: one.first for one in totals(standings(swapped)) if one.method == OURS}


def main(folder: Path) -> None:
    """Print a table with a section for each target: means over cells and seeds."""
    board = Board.load("tables")
    method = next(one for one in board.methods if one.name == OURS)
    stored = join_choices(board, [folder / "choices.csv"]).choices
    jobs = [(folder, cell, method, target) for target in board.targets for cell in board.cells]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(choices, *zip(*jobs, strict=True)))
    by_level = {name: [choice for one in found for choice in one[name]] for name in LEVELS}
    places = {name: firsts(stored, own) for name, own in by_level.items()}
    columns = [Column("Confidence"), Column("accuracy", "percent", 2), Column("mean gap", "percent", 2),
               Column("largest mean gap of a cell", "percent", 2), Column("held", "share"),
               Column("first or tied", "count")]  # fmt: skip
    sections = []
    for target in map(str, board.targets):
        rows = []
        for name, every in by_level.items():
            own = [one for one in every if one.target == target]
            gaps = [fmean(one.gap for one in own if one.cell == cell.name) for cell in board.cells]
            accuracy, held = fmean(one.accuracy for one in own), fmean(one.held for one in own)
            rows.append(row(name, accuracy, fmean(gaps), max(gaps), held, places[name][target]))
        sections.append(Section(rows, target, target))
    print(to_markdown(Table("", columns, sections, f"{len(board.cells)} cells.", key="target")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
