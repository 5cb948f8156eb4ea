"""Tables whose columns change their type on the way: the same numbers read whole, in pieces, or from several files.

Nearly all of them are loaded, unlike those of `tables`: what is looked for is a number that is silently another.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ffalm

_CELLS: dict[str, tuple[str, ...]] = {
    "numbers": ("0", "1", "2", "-3", "40"),
    "decimals": ("0.5", "1.50", "-0.0", ".5", "5.", "1e3", "2"),
    "codes": ("01", "1", "007", "1.0", "+1", "00"),
    "large": ("9007199254740993", "-9007199254740993", "9007199254740995.0", "3"),
    "texts": ("red", "blue", "Blue ", " green", "\u00e9", "e\u0301", "a,b", 'say "x"', "two\nlines", "1A"),
    "truth values": ("True", "False"),
    "capitals": ("TRUE", "false", "True"),
    "missing": ("", "NA", "nan", "None", "null"),
}


def _column(draws: random.Random, rows: int) -> list[str]:
    """Cells of one kind up to a row and of another from there on, now and then with some of a third between them."""
    kinds = [draws.choice([*_CELLS.values()]) for _ in range(3)]
    changes = draws.choice((rows, draws.randrange(rows)))
    stray = draws.choice((0, 0, 0.05))
    cells = (kinds[2] if draws.random() < stray else kinds[row >= changes] for row in range(rows))
    return [draws.choice(kind) for kind in cells]


@contextmanager
def _in_pieces(values: int) -> Iterator[None]:
    """Memory seems short: so many values are read at a time."""
    short = {
        "ffalm.data.table_readers._WHOLE": 0, "ffalm.data.table_readers._PIECE_VALUES": values,
        "ffalm.system.spilled_arrays._SHARE": 0, "ffalm.data.compact_features.DENSE_BYTES": 0,
    }  # fmt: skip
    with ExitStack() as patches:
        for name, value in short.items():
            patches.enter_context(patch(name, value))
        yield


def _loaded(file: str, settings: dict[str, Any]) -> list[Any]:
    """The rows of each client and part; nothing where they were refused."""
    try:
        found = ffalm.load(file, **settings)
    except ffalm.UserError:
        return []
    parts = [part for part in (*found.clients, found.validation, found.test) if part is not None]
    return [(part.x.tolist(), part.y.tolist(), part.group.tolist()) for part in parts]


def call(draws: random.Random, here: Path) -> Callable[[], object]:
    """Load one table in all ways, and compare."""
    rows = draws.choice((60, 90))
    table = {
        "sex": [draws.choice("mf") for _ in range(rows)], "paid": [draws.choice("01") for _ in range(rows)],
        "age": [str(draws.randrange(90)) for _ in range(rows)], "bank": ["split"] * (rows // 3) + ["tables"] * rows,
        **{name: _column(draws, rows) for name in "abc"[: draws.randrange(1, 4)]},
    }  # fmt: skip
    names = [name for name in table if name != "bank"]
    files = {"split": names, "tables": draws.sample(names, len(names)), "whole": [*names, "bank"]}
    for file, columns in files.items():
        with open(here / f"{file}.csv", "w", newline="", encoding="utf-8") as written:
            writer = csv.writer(written, lineterminator=draws.choice(("\n", "\r\n")))
            writer.writerow(columns)
            writer.writerows(
                [table[name][row] for name in columns] for row in range(rows) if file in ("whole", table["bank"][row])
            )
    settings: dict[str, Any] = {"label": "paid", "group": "sex", "min_rows": 1, "missing": "mean"}
    if draws.random() < 0.3:
        settings["categorical"] = ["a"]
    values = draws.choice((7, 50, 300))

    def compare() -> object:
        whole = _loaded(str(here / "whole.csv"), {**settings, "owner": "bank"})
        apart = f"{here / 'split.csv'},{here / 'tables.csv'}"
        assert _loaded(apart, settings) == whole, "two files are not the table"
        if whole:
            own = ffalm.load(str(here / "whole.csv"), **settings, owner="bank").preprocessing
            assert own is not None
            parts = [own.encode(own.read(here / f"{name}.csv")).tolist() for name in ("split", "tables")]
            together = own.encode(own.read(here / "whole.csv")).tolist()
            assert [row for part in parts for row in part] == together, (
                "new rows are others when fewer are read with them"
            )
        with _in_pieces(values):
            assert _loaded(str(here / "whole.csv"), {**settings, "owner": "bank"}) == whole, "pieces are not the table"
            assert _loaded(apart, settings) == whole, "pieces of two files are not the table"
        return whole

    return compare
