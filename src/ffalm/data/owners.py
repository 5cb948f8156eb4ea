"""Who owns a row: the clients that a column of the data names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ffalm.data.encoding import RawTable
from ffalm.data.table_values import Codes, complete, listed, natural
from ffalm.errors import require_known


def code_owner(column: pd.Series, rows: Codes, file: str) -> tuple[Codes, tuple[str, ...], tuple[str, ...]]:
    """The owner code of every row, -1 for owners without training rows, the owners' names in natural order, and a note
    on the former."""
    codes, values = complete(column, "owner", file)
    present = {values[code] for code in np.unique(codes[rows])}
    names = tuple(sorted(present, key=natural))
    place = {name: number for number, name in enumerate(names)}
    coded = np.array([place.get(value, -1) for value in values], dtype=np.int64)[codes]
    absent = [value for value in values if value not in place]
    note = (
        f"Owners without training rows are not clients: {listed(absent)}. Their {int((coded < 0).sum()):,} held-out "
        "and test rows are scored with all others."
    )
    return coded, names, (note,) if absent else ()


def with_owners(table: RawTable, column: str | None) -> RawTable:
    """The table with one owner for each value of a column of text, which is no longer a feature."""
    if column is None:
        return table
    texts = [str(name) for name in table.features.select_dtypes(exclude="number").columns]
    require_known(f"column of owners of {table.task.name}", texts, column)
    owner, names, notes = code_owner(table.features[column], table.parts[0], table.task.name)
    kept = table.features.drop(columns=column)
    return replace(table, features=kept, owner=owner, owner_names=names, notes=(*table.notes, *notes))
