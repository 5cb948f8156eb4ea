"""What the confidence of a target costs and brings, on the runs of a leaderboard.

    python benchmarks/confidence.py FOLDER

FOLDER is that of `ffalm leaderboard`, of the board of tables. Nothing is trained: `ffalm compare --target` chooses from
the stored scores of every cell and seed again, with each confidence. Figures are of test rows.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

from ffalm.config import entry_of
from ffalm.leaderboard.board import Board, Method
from ffalm.report.rendering import to_markdown
from ffalm.report.tables import Column, Section, Table, row
from ffalm.studies.results import Study
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.target import Target

LEVELS = {"0.5 (no margin)": 0.5, "0.8": 0.8, "default (0.8, less where rows are few)": None, "0.9": 0.9, "0.95": 0.95}
Scored = tuple[float, float, bool]  # accuracy, gap, whether the target holds


def choices(folder: Path, method: Method, target: Target) -> dict[str, list[Scored]]:
    """What the choice of each seed gives on test rows, by the confidence of the choice."""
    study = Study.load(folder)
    labels = {entry_of(key, values).label for key, values in method.sections(target).items()}
    found: dict[str, list[Scored]] = {name: [] for name in LEVELS}
    for seed in sorted({run.seed for run in study.results}):
        runs = [
            FinishedRun(run.label, run.seed, run.alpha, run.place, study.scores(run))
            for run in study.results
            if run.seed == seed and run.label in labels and run.diverged is None
        ]
        for name, level in LEVELS.items():
            metrics = answer_of(runs, target, method.repair, study.record.group_names, level).scored.metrics
            found[name].append((metrics["accuracy"], metrics[target.bounds[0].metric], target.meets(metrics)))
    return found


def main(folder: Path) -> None:
    """Print a table with a section for each target: means over cells and seeds."""
    board = Board.load("tables")
    method = next(one for one in board.methods if one.name == "answer")
    cells = sorted(one.parent for one in folder.glob("*/study.json"))
    columns = [Column("Confidence"), Column("accuracy", "percent", 2), Column("mean gap", "percent", 2),
               Column("largest mean gap of a cell", "percent", 2), Column("held", "share")]  # fmt: skip
    sections = []
    with ProcessPoolExecutor(2) as pool:
        for target in board.targets:
            count = len(cells)
            by_cell = list(pool.map(choices, cells, [method] * count, [target] * count))
            rows = []
            for name in LEVELS:
                every = [one for cell in by_cell for one in cell[name]]
                gaps = [fmean(gap for _, gap, _ in cell[name]) for cell in by_cell]
                held = fmean(held for _, _, held in every)
                rows.append(row(name, fmean(one[0] for one in every), fmean(gaps), max(gaps), held))
            sections.append(Section(rows, str(target), str(target)))
    print(to_markdown(Table("", columns, sections, f"{len(cells)} cells.", key="target")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
