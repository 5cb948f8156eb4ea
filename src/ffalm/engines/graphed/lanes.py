"""How many lanes there are, and work that goes on in all of them at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import torch

from ffalm.algorithms import State
from ffalm.data.types import Examples
from ffalm.engines.base import Job
from ffalm.engines.graphed.lane import Lane

#: Lanes that are worth having: more gain nothing on the largest GPUs of today (benchmarks/images.py).
IN_FLIGHT = 5
_ENDED = object()
_SPARED = 0.2  # of the GPU's free memory, for last batches of other sizes and for the clients' models


class Lanes:
    """The lanes of one kind of job, as many as are wanted and the GPU's memory holds."""

    def __init__(self, job: Job, wanted: int) -> None:
        self._job, self._wanted = job, wanted
        self._lanes: list[Lane] = []

    @property
    def first(self) -> Lane:
        """A lane for work that is done once, such as validation."""
        if not self._lanes:
            self._lanes.append(Lane(self._job))
        return self._lanes[0]

    def open(self, clients: int, source: Examples, state: State) -> list[Lane]:
        """Lanes for a round of this many clients. The first tells what a lane takes, the others must fit beside it."""
        rows = min(self._job.training.batch_size or len(source), len(source))
        wanted = min(self._wanted, clients)
        if wanted > 1 and len(self._lanes) < wanted:
            before = _free(self._job.device)
            self.first.prepare(source, state, rows)
            taken = max(1, before - _free(self._job.device))
            room = int(_free(self._job.device) * (1 - _SPARED)) // taken
            with suppress(torch.cuda.OutOfMemoryError):
                while len(self._lanes) < min(wanted, 1 + room):
                    lane = Lane(self._job)
                    lane.prepare(source, state, rows)
                    self._lanes.append(lane)
            self._wanted = len(self._lanes)
        return [self.first, *self._lanes[1:wanted]]


def shared_out(loads: Mapping[int, int], lanes: int) -> list[list[int]]:
    """Which clients each lane trains: the largest first, each to the lane that has least to do."""
    shares: list[list[int]] = [[] for _ in range(lanes)]
    for client in sorted(loads, key=lambda client: (-loads[client], client)):
        min(shares, key=lambda share: sum(loads[other] for other in share)).append(client)
    return shares


def side_by_side(lanes: Sequence[Lane], works: Sequence[Iterator[None]]) -> None:
    """Advance all lanes' work in turns, a launch at a time, after what was launched before and before what follows."""
    main = torch.cuda.current_stream(lanes[0].stream.device)
    for lane in lanes:
        lane.stream.wait_stream(main)
    going = list(zip(lanes, works, strict=True))
    while going:
        going = [(lane, work) for lane, work in going if _advanced(lane, work)]
    for lane in lanes:
        main.wait_stream(lane.stream)


def _advanced(lane: Lane, work: Iterator[None]) -> bool:
    """Launch the next piece of a lane's work; False where there is none."""
    with torch.cuda.stream(lane.stream):
        return next(work, _ENDED) is not _ENDED


def _free(device: torch.device) -> int:
    """Bytes of the GPU that nobody holds, blocks that torch keeps for reuse given back first."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
