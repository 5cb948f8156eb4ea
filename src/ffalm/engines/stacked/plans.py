"""Plans for scoring that are kept from round to round."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from ffalm.engines.stacked.row_layout import Span
from ffalm.engines.stacked.scoring import Plan

Spans = tuple[Span, ...]


class Plans:
    """Plans by what they score. Where the same clients come back each round, so do their plans.

    Those longest unused go first, as soon as all together score more than `limit` rows: clients drawn at random
    hardly ever come back in the same company.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Spans, Plan] = OrderedDict()
        self._rows = 0

    def of(self, spans: Sequence[Span], make: Callable[[Spans], Plan]) -> Plan:
        """The plan for scoring copies on these rows, made if it is not kept."""
        key = tuple(spans)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        self._rows += _rows(key)
        while self._kept and self._rows > self._limit:
            self._rows -= _rows(self._kept.popitem(last=False)[0])
        self._kept[key] = make(key)
        return self._kept[key]

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()
        self._rows = 0


def _rows(spans: Spans) -> int:
    return sum(rows for _, rows in spans)
