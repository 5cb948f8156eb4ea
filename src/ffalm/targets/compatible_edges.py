"""The best choice of one edge per group where each two groups say which of their edges go together: branch and bound.

Confidence bounds of gaps depend on both groups' rates and sizes, so they leave no windows to search (`thresholds.py`),
yet the largest gap is within its bound if that of each two groups is. Groups are decided one after the other. The best
that is left to the others, each by itself, bounds what an edge can lead to; edges are tried from the best bound down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ffalm.targets.rate_table import Array

Flags = NDArray[np.bool_]
_STEPS = 4000  # edges that are tried, before the search ends with the best so far


@dataclass
class CompatibleEdges:
    """The search over groups; `together` has, for places i < j, the flags of (edge of i, edge of j)."""

    values: Sequence[Array]
    together: Mapping[tuple[int, int], Flags]
    steps: int = _STEPS
    best: float = -np.inf
    found: list[int] | None = field(default=None, init=False)

    def search(self) -> list[int] | None:
        """The best choice with a value above `best`; None if there is none, or `steps` did not suffice to find one."""
        self._decide([], 0.0, [np.isfinite(own) for own in self.values])
        return self.found

    @property
    def complete(self) -> bool:
        """Whether nothing was left untried."""
        return self.steps > 0

    def _decide(self, chosen: list[int], total: float, left: Sequence[Flags]) -> None:
        """Try the edges of the next group, given those of the groups before it and what they leave to the others."""
        group = len(chosen)
        if group == len(self.values):
            self.best, self.found = total, chosen
            return
        own = np.flatnonzero(left[group])
        bounds = total + self.values[group][own]
        for other in range(group + 1, len(self.values)):
            fits = self.together[group, other][own] & left[other]
            bounds = bounds + np.where(fits, self.values[other], -np.inf).max(1, initial=-np.inf)
        for place in np.argsort(-bounds, kind="stable"):
            if bounds[place] <= self.best or self.steps <= 0:
                break
            self.steps -= 1
            edge = int(own[place])
            rest = [
                flags if other <= group else flags & self.together[group, other][edge]
                for other, flags in enumerate(left)
            ]
            self._decide([*chosen, edge], total + float(self.values[group][edge]), rest)
