"""Running a board: one resumable study per cell, each in its own folder, then every method's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffalm.config import StudyConfig
from ffalm.data import source_class
from ffalm.errors import require
from ffalm.leaderboard.board import Board
from ffalm.leaderboard.method_choices import MethodChoice, choices_of
from ffalm.studies.results import Study
from ffalm.studies.study import compute_study

Trainer = Callable[[str, StudyConfig, Path], Study]
"""Trains the study of a cell, given the cell's name, in a folder."""


@dataclass(frozen=True)
class BoardResult:
    """Every method's choices in every cell, and what was left out."""

    choices: list[MethodChoice]
    left_out: list[str]  # in sentences


def run_board(
    board: Board,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    root: str | None = None,
    train: Trainer | None = None,
) -> BoardResult:
    """Train the runs that the folder lacks, and let every method choose.

    Cells whose data are in files are left out without a `root`, and so are methods that cannot take a cell's data.
    """
    train = train or (lambda cell, config, folder: share(config, folder))
    waiting: list[Future[list[MethodChoice]]] = []
    left_out: list[str] = []
    with ThreadPoolExecutor(1) as chooser:  # it keeps one core busy while the next cell trains in other processes
        for cell in board.cells:
            if root is None and source_class(cell.source).needs_files:
                left_out.append(f"{cell.name}: give the folder with the files of {cell.source} with --root.")
                continue
            studies = {
                place: train(cell.name, config, out / cell.slug / (f"training-{place}" if place else "."))
                for place, config in board.configs(cell, changes or {}, root).items()
            }
            left_out += [f"{cell.name}: {one.reason}" for study in studies.values() for one in study.record.left_out]
            waiting.append(chooser.submit(choices_of, board, cell.name, studies))
    choices = [choice for one in waiting for choice in one.result()]
    require(bool(choices), f"No cell of the board could be run. {' '.join(left_out)}")
    return BoardResult(choices, left_out)


def share(config: StudyConfig, folder: Path) -> Study:
    """The study in a folder that may hold runs of a board with other methods."""
    return compute_study(config, folder, [entry.key for entry in config.entries], "share")
