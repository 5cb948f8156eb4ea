"""Where the rows of all jobs lie in one table, each row once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.data.row_views import RowView
from ffalm.data.types import Examples
from ffalm.federation import Federation

Span = tuple[int, int]
"""A part's rows in the list of all parts: the first and how many."""


@dataclass(frozen=True)
class RowLayout:
    """All sources of rows, each once, and where each part of each job lies.

    Parts (clients and validation parts) are numbered through, one after the other; `lookup` says which row of the
    table each of these numbers means. Seeds that deal out the same table, or only share its validation part, share its
    rows in memory too. Where every source is one part the numbers are the table's own.
    """

    sources: list[Examples]
    lookup: Tensor | None
    parts: list[list[Span]]  # for each job its clients, then its validation part if there is one

    @property
    def length(self) -> int:
        """Rows of all parts."""
        return max(first + rows for parts in self.parts for first, rows in parts)


def row_layout_of(federations: Sequence[Federation]) -> RowLayout:
    """Lay out the parts of some federations."""
    sources: dict[tuple[int, ...], tuple[int, Examples]] = {}
    known: dict[tuple[int, ...], Span] = {}
    rows: list[Tensor] = []
    length = end = 0
    parts: list[list[Span]] = []
    for federation in federations:
        parts.append([])
        validation = [] if federation.validation is None else [RowView(federation.validation)]
        for view in [*federation.row_views, *validation]:
            source = tuple(map(id, (view.source.x, view.source.y, view.source.group)))
            if source not in sources:
                sources[source] = length, view.source
                length += len(view.source)
            part = (*source, id(view.rows))
            if part not in known:
                known[part] = end, len(view)
                end += len(view)
                rows.append(_numbers(view, sources[source][0]))
            parts[-1].append(known[part])
    lookup = torch.cat(rows)
    in_order = len(lookup) == length and bool((lookup == torch.arange(length, dtype=torch.int32)).all())
    return RowLayout([source for _, source in sources.values()], None if in_order else lookup, parts)


def _numbers(view: RowView, first: int) -> Tensor:
    """A part's rows by their numbers in the table."""
    own = torch.arange(len(view)) if view.rows is None else view.rows
    return (own + first).int()
