"""Rows of a shared table by row number, without copies: ten partitions of a table keep it in memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from ffalm.data.types import Examples, Task


@dataclass(frozen=True)
class RowView:
    """Some rows of a source of examples, by row number."""

    source: Examples
    rows: Tensor | None = None  # None: all of them, in their order

    def __len__(self) -> int:
        return len(self.source if self.rows is None else self.rows)

    def examples(self) -> Examples:
        """The rows: a new copy, unless they are the whole source."""
        return self.source if self.rows is None else self.source.take(self.rows)

    def first(self, count: int) -> Examples:
        """The first rows, to inspect their shape and type."""
        rows = torch.arange(min(count, len(self))) if self.rows is None else self.rows[:count]
        return self.source.take(rows)

    def counts(self, task: Task) -> Tensor:
        """Number of rows per (label, group)."""
        if self.rows is None:
            return self.source.counts(task)
        nothing = self.source.x.new_empty(len(self), 0)
        return Examples(nothing, self.source.y[self.rows], self.source.group[self.rows]).counts(task)


class ClientRows(Sequence[Examples]):
    """The examples of several clients, gathered on each access and not kept."""

    def __init__(self, row_views: Sequence[RowView]) -> None:
        self.row_views = tuple(row_views)

    def __len__(self) -> int:
        return len(self.row_views)

    def __repr__(self) -> str:
        return f"ClientRows({', '.join(str(len(view)) for view in self.row_views)} rows)"

    @overload
    def __getitem__(self, place: int) -> Examples: ...
    @overload
    def __getitem__(self, place: slice) -> ClientRows: ...
    def __getitem__(self, place: int | slice) -> Examples | ClientRows:
        return ClientRows(self.row_views[place]) if isinstance(place, slice) else self.row_views[place].examples()


def row_views_of(clients: Sequence[Examples]) -> tuple[RowView, ...]:
    """The view of each client; plain examples are held whole."""
    return clients.row_views if isinstance(clients, ClientRows) else tuple(RowView(examples) for examples in clients)
