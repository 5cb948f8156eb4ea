"""The stacked engine: clients and seeds on a leading tensor axis, so that one operation trains all of them.

It gives the loop engine's numbers up to rounding, many times faster for small models. Models whose layers mix the
rows of a batch or draw at random cannot be stacked; `why_not_stacked` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ffalm.engines.base import Job, Round
from ffalm.engines.stacked.choose import why_not_stacked
from ffalm.engines.stacked.grouping import Ready, ready, stacks
from ffalm.engines.stacked.heap import keep_freed
from ffalm.engines.stacked.stack import Stack
from ffalm.errors import require

_BUDGET = 2**28  # bytes of working memory beside the rows and the participants' models
_CPU_BUDGET = 2**26  # more would leave the caches


class StackedEngine:
    """Clients and seeds computed together."""

    name: ClassVar[str] = "stacked"
    together: ClassVar[bool] = True
    spreads: ClassVar[bool] = False

    def __init__(self, budget: int | None = None) -> None:
        """`budget` bounds the bytes worked on at a time; the lanes of a round are cut into chunks that fit."""
        self._budget = budget

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Jobs that differ only in numbers advance together, one stack of them after the other."""
        refuse_privacy(jobs)
        keep_freed()
        waiting = [ready(number, job) for number, job in enumerate(jobs)]
        for stack in stacks(waiting):
            _check(stack[0])
            usual = _CPU_BUDGET if stack[0].job.device.type == "cpu" else _BUDGET
            yield from Stack(stack, self._budget or usual).rounds()


def refuse_privacy(jobs: Sequence[Job]) -> None:
    """A stack averages all clients in one operation, and privacy must bound each one's change before."""
    require(
        all(job.privacy is None for job in jobs),
        "The stacked engine knows no differential privacy: use engine='loop', or engine='graphed' on a GPU.",
    )


def _check(one: Ready) -> None:
    """Refuse what cannot be stacked before anything is computed."""
    require(
        one.job.precision != "bf16",
        "The stacked engine does not compute in bfloat16: use precision 'fp32' or 'tf32', or engine='loop'.",
    )
    reason = why_not_stacked(one.model, one.job.federation.clients[0].x)
    require(reason is None, f"The model {type(one.model).__name__} cannot be stacked: {reason}; use engine='loop'.")


__all__ = ["StackedEngine", "refuse_privacy", "why_not_stacked"]
