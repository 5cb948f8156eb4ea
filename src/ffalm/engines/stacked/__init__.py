"""The stacked engine: clients and seeds on a leading tensor axis, so that one operation trains all of them.

It gives the loop engine's numbers up to rounding, many times faster for small models. Models whose layers mix the
rows of a batch or draw at random cannot be stacked; `why_not_stacked` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from torch import nn

from ffalm.engines.common import built_model
from ffalm.engines.jobs import Engine, Job, Round, Together
from ffalm.engines.objective_trial import why_not_together
from ffalm.engines.prepared_jobs import PreparedJob, prepare_job
from ffalm.engines.stacked.choose import why_not_stacked
from ffalm.engines.stacked.grouping import stacks
from ffalm.engines.stacked.heap import keep_freed
from ffalm.engines.stacked.needs import cut, needs_of
from ffalm.engines.stacked.stack import Stack
from ffalm.errors import UserError, require
from ffalm.system.memory import format_bytes, free, give_back, out_of_memory

_BUDGET = 2**28  # bytes of working memory beside the rows and the participants' models
_CPU_BUDGET = 2**26  # more would leave the caches


class StackedEngine(Engine):
    """Clients and seeds computed together."""

    name: ClassVar[str] = "stacked"
    together: ClassVar[Together] = Together.CLIENTS
    spreads: ClassVar[bool] = False

    def __init__(self, budget: int | None = None) -> None:
        """`budget` bounds the bytes worked on at a time; the lanes of a round are cut into chunks that fit.

        Where less memory is free than that, what is free bounds it.
        """
        self._budget = budget

    def refusal(self, job: Job) -> str | None:
        """Models whose layers mix rows or draw at random, and bfloat16."""
        return _why_not(job, built_model(job.spec))

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Jobs that differ only in numbers advance together, one stack of them after the other."""
        keep_freed()
        waiting = [prepare_job(number, job) for number, job in enumerate(jobs)]
        for alike in stacks(waiting):
            reason = _why_not(alike[0].job, alike[0].model)
            require(reason is None, str(reason))
            usual = _CPU_BUDGET if alike[0].job.spec.device.type == "cpu" else _BUDGET
            planned = cut(alike, self._budget or usual)
            left = deque(planned.stacks)
            while left:
                stack = left.popleft()
                unfinished = yield from _computed(stack, planned.budget)
                if len(unfinished) == 1 and len(stack) == 1:
                    raise _too_large(unfinished[0])
                half = -(-len(unfinished) // 2)
                left.extendleft(part for own in (unfinished[half:], unfinished[:half]) for part in stacks(own))


def _computed(stack: list[PreparedJob], budget: int) -> Generator[tuple[int, Round], None, list[PreparedJob]]:
    """Every round of a stack for which there is memory; returns the jobs that it left unfinished, where they stopped.

    Nothing of the failed round is kept, and a job goes on from any round as if nothing had happened.
    """
    last: dict[int, Round] = {}
    try:
        for number, done in Stack(stack, budget).rounds():
            last[number] = done
            yield number, done
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    else:
        return []
    give_back(stack[0].job.spec.device)
    return [
        replace(one, start=last[one.number].snapshot) if one.number in last else one
        for one in stack
        if one.number not in last or not _over(one, last[one.number])
    ]


def _over(one: PreparedJob, done: Round) -> bool:
    return done.diverged is not None or done.snapshot.round >= one.job.spec.training.rounds


def _too_large(one: PreparedJob) -> UserError:
    """What a job would need that ran out of memory even with one client at a time."""
    needs, left = needs_of([one.job], one.model), free(one.job.spec.device, one.job.processes)
    there = "" if left is None else f", and {format_bytes(left)} are free"
    return UserError(
        f"The {one.job.spec.device.type} has too little memory to train even one client at a time: about "
        f"{format_bytes(needs.least)} to work in and {format_bytes(needs.standing)} for rows and models are "
        f"needed{there}; choose a smaller batch_size, fewer clients a round (participation) or fewer worker processes."
    )


def _why_not(job: Job, model: nn.Module) -> str | None:
    """Why a job with this fresh model cannot be stacked, in one sentence."""
    if job.spec.precision == "bf16":
        return "The stacked engine does not compute in bfloat16: use precision 'fp32' or 'tf32', or engine='loop'."
    refused = why_not_together(job.spec.algorithm, job.federation)
    if refused is not None:
        return refused
    reason = why_not_stacked(model, job.federation.first_rows(3).x)
    name = type(model).__name__.lstrip("_")
    return None if reason is None else f"The model {name} cannot be stacked: {reason}; use engine='loop'."


__all__ = ["StackedEngine", "why_not_stacked"]
