"""The leaderboard as tables, a page in Markdown and two CSV files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from ffalm import __version__
from ffalm.leaderboard.board import Board
from ffalm.leaderboard.board_runs import BoardResult
from ffalm.leaderboard.method_choices import MethodChoice
from ffalm.leaderboard.standings import BEYOND, Standing, Total, seeds_by_cell, standings, totals
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.report.tables import Cell, Column, Row, Section, Table, row
from ffalm.system.files import write_atomic

_RULE = (
    "Each method may try at most {budget} settings per metric. In every seed, each method's most accurate model is "
    "taken whose gap on held-out rows (and on training rows, if the models predict both alike) is within the bound "
    "with a margin; it is then scored once on test rows. All numbers are of test rows, in percent. A method qualifies "
    "in a cell if it has a model in every seed, none of them is degenerate (one label for over 99 % of the rows, or "
    "less accurate than always predicting the most frequent label), and its mean gap is within the bound. Qualified "
    "methods are ranked by mean accuracy; all others share the places below. First are the top-ranked method and all "
    "that a paired t-test over seeds, corrected for the number of methods (Holm, 5 %), does not distinguish from it."
)


def overall(board: Board, found: Sequence[Standing]) -> Table:
    """Every method over all cells, a section for each bound."""
    titles = {method.name: method.title for method in board.methods}
    columns = [
        Column("Method"),
        Column("first", "count"),
        Column("fit", "count"),
        Column("rank", "ratio", 1),
        Column("accuracy", "percent", 1),
        Column("held", "share"),
        Column("volume", "percent", 1),
    ]
    sections = []
    rows = totals(found)
    cells = max(one.cells for one in rows)
    for target in dict.fromkeys(one.target for one in rows):
        own = [one for one in rows if one.target == target]
        most = max(one.first for one in own)
        listed = [_total(one, titles[one.method], 0 < one.first == most, cells) for one in own]
        sections.append(Section(listed, target, target))
    caption = (
        f"Of {cells} cell{'s' * (cells != 1)}, those in which a method is first or tied with the first, and those in "
        "which it qualifies (fit); its mean rank; mean accuracy where it qualifies; share of seeds in which the target "
        "held on test rows; hypervolume."
    )
    return Table("Over all cells", columns, sections, caption, key="target")


def _total(one: Total, title: str, most: bool, cells: int) -> Row:
    accuracy = one.accuracy if one.qualified else None
    note = f"in {one.cells} of {cells} cells" if one.cells < cells else ""
    own = Cell(title, bold=most)
    return row(own, one.first, one.qualified, one.rank, accuracy, one.held, _known(one.hypervolume), note=note)


def _known(volume: float) -> float | None:
    """A volume, blank if it was measured in another box than those of the other methods."""
    return None if math.isnan(volume) else volume


def by_cell(board: Board, found: Sequence[Standing]) -> Table:
    """The first method of every cell, beside FedAvg if it is on the board; a section for each bound."""
    titles = {method.name: method.title for method in board.methods}
    figures = [Column("accuracy", "percent", 1), Column("gap", "percent", 1)]
    columns = [Column("Cell"), Column("First"), *figures, Column("held", "share"), Column("Tied with it")]
    beside = "fedavg" in titles
    if beside:
        columns += [replace(column, head=f"{titles['fedavg']}: {column.head}") for column in figures]
    sections = []
    for target in dict.fromkeys(one.target for one in found):
        rows = []
        for cell in dict.fromkeys(one.cell for one in found):
            own = [one for one in found if (one.cell, one.target) == (cell, target)]
            plain = next((one for one in own if one.method == "fedavg"), None)
            aside = ([plain.accuracy, plain.gap] if plain else [None, None]) if beside else []
            rows.append(row(cell, *_leaders(own, titles), *aside))
        sections.append(Section(rows, target, target))
    caption = (
        "The first method, its means over seeds, the share of seeds in which the target held, and who is tied with it"
    )
    return Table("Cell by cell", columns, sections, f"{caption}{'; beside it FedAvg' * beside}.", key="target")


def _leaders(own: Sequence[Standing], titles: Mapping[str, str]) -> list[Cell | str | float | None]:
    """The first of a cell at a bound and those tied with it; if none qualifies, the one with the smallest gap."""
    leading = [one for one in own if one.first]
    if leading:
        first, *tied = leading
        names = ", ".join(titles[one.method] for one in tied)
        return [Cell(titles[first.method], bold=True), first.accuracy, first.gap, first.held, names]
    nearest = next((one for one in own if one.problem == BEYOND), None)  # ordered by gap
    if nearest is None:
        return ["nobody qualifies", None, None, None, ""]
    return [f"nobody; nearest {titles[nearest.method]}", nearest.accuracy, nearest.gap, nearest.held, ""]


def of_cell(board: Board, found: Sequence[Standing], cell: str, seeds: int) -> Table:
    """The methods in one cell, with its number of seeds, which may differ between cells."""
    titles = {method.name: method.title for method in board.methods}
    columns = [
        Column("Method"),
        Column("rank", "number", 2),
        Column("accuracy", "percent", 2),
        Column("gap", "percent", 2),
        Column("held", "share"),
        Column("volume", "percent", 1),
        Column("p", "number", 1),
    ]
    sections = []
    for target in dict.fromkeys(one.target for one in found):
        own = [one for one in found if (one.cell, one.target) == (cell, target)]
        rows = [
            row(Cell(titles[one.method], bold=one.first), one.rank, Cell(one.accuracy, one.spread), one.gap, one.held,
                _known(one.hypervolume), None if one.problem else one.p, note=one.problem)
            for one in own
        ]  # fmt: skip
        sections.append(Section(rows, target, target))
    caption = f"{seeds} seed{'s' * (seeds != 1)}. Bold: first, or tied with the first."
    return Table(cell, columns, sections, caption, key="target")


def tidy(rows: Sequence[Standing] | Sequence[MethodChoice]) -> Table:
    """Standings or choices as a table for machines."""
    names = [one.name for one in dataclasses.fields(rows[0])]
    kinds = [Column(name, "text" if isinstance(getattr(rows[0], name), str) else "number", 9) for name in names]
    return Table("", kinds, [Section([row(*(_plain(getattr(one, name)) for name in names)) for one in rows])])


def _plain(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def write_leaderboard(board: Board, result: BoardResult, out: Path, command: str = "") -> dict[str, Path]:
    """Write the page and its data."""
    found = standings(result.choices)
    seeds = seeds_by_cell(result.choices)
    parts = [
        f"# Leaderboard: {board.title}",
        _RULE.format(budget=board.budget),
        f"{f'Command: `{command}`; ' if command else ''}ffalm {__version__}, {date.today()}.",
        f"## Over all cells\n\n{to_markdown(overall(board, found))}\n{to_markdown(by_cell(board, found))}",
        *(f"## {cell}\n\n{to_markdown(of_cell(board, found, cell, count))}" for cell, count in seeds.items()),
    ]
    if result.left_out:
        parts.append("## Left out\n\n" + "\n".join(f"- {line}" for line in dict.fromkeys(result.left_out)))
    files = {
        "leaderboard.md": "\n\n".join(parts) + "\n",
        "leaderboard.csv": to_csv(tidy(found)),
        "choices.csv": to_csv(tidy(result.choices)),
    }
    return {name: write_atomic(out / name, text) for name, text in files.items()}
