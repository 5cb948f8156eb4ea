"""Joins the `choices.csv` of parts of a board, each a few cells and seeds, which may be computed on several machines.

Ranks depend on the choices alone, so joining needs neither training nor the data. The joined choices have the order of
a run of the whole board, whatever the order of the files.

Hypervolumes stay as each part measured them, in the box of a seed's runs in that part, and only volumes of one box are
comparable. If the methods of a seed are in several files, those of the file with most methods keep their volumes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

from ffalm.data.table_files import read_table
from ffalm.data.table_values import pick
from ffalm.errors import UserError, require, short_repr
from ffalm.leaderboard.board import METRICS, Board
from ffalm.leaderboard.board_runs import BoardResult
from ffalm.leaderboard.method_choices import MethodChoice

_Key = tuple[str, str, str, int]  # cell, target, method, seed
_HELD = {"0": False, "1": True, "0.0": False, "1.0": True}  # the latter where a spreadsheet or pandas wrote them


def join_choices(
    board: Board,
    files: Sequence[Path],
    skip_cells: bool = False,
    skip_methods: bool = False,
    seeds: Collection[int] | None = None,
) -> BoardResult:
    """The choices of all files, each once, in the board's order; what the files lack is left out.

    A cell or method that the board does not have is refused, or skipped with `skip_cells` or `skip_methods`, which are
    for a board of which only some cells or methods were picked. With `seeds`, other seeds are skipped too.
    """
    cells, methods = [cell.name for cell in board.cells], [method.name for method in board.methods]
    metrics = {str(target): METRICS.index(target.bounds[0].metric) for target in board.targets}
    targets = list(metrics)
    found: dict[_Key, dict[Path, MethodChoice]] = {}
    for file in files:
        for one in read_choices(file):
            if (skip_cells and one.cell not in cells) or (skip_methods and one.method not in methods):
                continue
            if seeds is not None and one.seed not in seeds:
                continue
            _require_of_board("cell", one.cell, cells, file)
            _require_of_board("method", one.method, methods, file)
            _require_of_board("target", one.target, targets, file)
            own = found.setdefault((one.cell, one.target, one.method, one.seed), {})
            _require_same(own, one, file)
            own[file] = one
    names = " and ".join(repr(str(file)) for file in files)
    require(bool(found), f"No choice in {names} is of the cells, methods and seeds that are asked for.")
    choices = sorted(
        _once(found),
        key=lambda one: (
            cells.index(one.cell),
            one.seed,
            metrics[one.target],
            methods.index(one.method),
            targets.index(one.target),
        ),
    )
    _require_equal_seeds(choices)
    present = {one.cell for one in choices} | {one.method for one in choices}
    return BoardResult(
        choices, [f"{name}: the files hold no choices of it." for name in cells + methods if name not in present]
    )


def _once(found: Mapping[_Key, Mapping[Path, MethodChoice]]) -> list[MethodChoice]:
    """Each choice once, with volumes of one box in each seed of a cell."""
    methods: dict[tuple[str, int], dict[Path, set[str]]] = {}
    for (cell, _, method, seed), own in found.items():
        for file in own:
            methods.setdefault((cell, seed), {}).setdefault(file, set()).add(method)
    largest = {part: max(own, key=lambda file: len(own[file])) for part, own in methods.items()}
    return [
        own.get(largest[cell, seed]) or replace(next(iter(own.values())), hypervolume=math.nan)
        for (cell, _, _, seed), own in found.items()
    ]


def read_choices(file: Path) -> Iterator[MethodChoice]:
    """The choices in a CSV file, which may be compressed by gzip."""
    frame, _ = read_table(str(file), texts="all")
    columns = {field.name: pick(frame, field.name, str(file)).astype(str) for field in fields(MethodChoice)}
    for number, values in enumerate(zip(*columns.values(), strict=True), 1):
        yield _choice(dict(zip(columns, values, strict=True)), f"data row {number} of {str(file)!r}")


def _choice(row: dict[str, str], where: str) -> MethodChoice:
    require(row["held"] in _HELD, f"The column 'held' in {where} must be 0 or 1; got {short_repr(row['held'])}.")
    return MethodChoice(
        row["cell"],
        row["target"],
        row["method"],
        _seed(row["seed"], where),
        _number(row, "accuracy", where),
        _number(row, "gap", where),
        _HELD[row["held"]],
        row["degenerate"],
        row["chosen"],
        _number(row, "hypervolume", where),
    )


def _seed(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"The column 'seed' in {where} must be a whole number; got {short_repr(text)}.") from None


def _number(row: dict[str, str], name: str, where: str) -> float:
    """A finite number; NaN if the field is empty, as it is for a method without a model."""
    if not row[name]:
        return math.nan
    try:
        number = float(row[name])
    except ValueError:
        number = math.nan
    require(
        math.isfinite(number), f"The column {name!r} in {where} must be a number or empty; got {short_repr(row[name])}."
    )
    return number


def _require_of_board(kind: str, name: str, known: Collection[str], file: Path) -> None:
    require(
        name in known,
        f"{str(file)!r} has choices of the {kind} {short_repr(name)}, which the board does not have: name the "
        "board that they are from with --board.",
    )


def _require_same(found: Mapping[Path, MethodChoice], one: MethodChoice, file: Path) -> None:
    """Refuse two different choices for the same cell, bound, method and seed; NaN is the same as NaN.

    Volumes may differ, since files of different methods have different boxes.
    """
    for other, first in found.items():
        names = " and ".join(dict.fromkeys((repr(str(other)), repr(str(file)))))
        require(
            repr(replace(first, hypervolume=0.0)) == repr(replace(one, hypervolume=0.0)),
            f"The choices of {one.method!r} in the cell {one.cell!r} at {one.target!r} in seed {one.seed} differ "
            f"in {names}: give only one of them.",
        )


def _require_equal_seeds(choices: Sequence[MethodChoice]) -> None:
    """Refuse a cell whose methods have different seeds, since their means are not comparable.

    A method may lack a whole cell, since some cannot take a cell's data.
    """
    present = {(one.cell, one.method, one.target, one.seed) for one in choices}
    for cell in dict.fromkeys(one.cell for one in choices):
        own = [one for one in choices if one.cell == cell]
        methods, targets, seeds = ({getattr(one, name) for one in own} for name in ("method", "target", "seed"))
        for method, target, seed in product(sorted(methods), sorted(targets), sorted(seeds)):
            require(
                (cell, method, target, seed) in present,
                f"The cell {cell!r} has no choice of {method!r} at {target!r} in seed {seed}, as it has of others: "
                "add the file that has it, or choose with --methods or --seeds.",
            )
