"""How many workers there are, and work that goes on in all of them at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import torch

from ffalm.data.types import Examples
from ffalm.engines.graphed.worker import ClientInput, StreamWorker
from ffalm.engines.jobs import Job

#: Workers that are worth having: more gain nothing on the largest GPUs of today (benchmarks/images.py).
IN_FLIGHT = 5
_ENDED = object()
_SPARED = 0.2  # of the GPU's free memory, for last batches of other sizes and for the clients' models


class WorkerPool:
    """The workers of one kind of job, as many as are wanted and the GPU's memory holds."""

    def __init__(self, job: Job, wanted: int) -> None:
        self._job, self._wanted = job, wanted
        self._workers: list[StreamWorker] = []

    @property
    def first(self) -> StreamWorker:
        """A worker for work that is done once, such as validation."""
        if not self._workers:
            self._workers.append(StreamWorker(self._job))
        return self._workers[0]

    def open(self, clients: int, source: Examples, received: ClientInput) -> list[StreamWorker]:
        """Workers for a round of this many clients. The first shows what one takes, the others must fit beside it."""
        rows = min(self._job.spec.training.batch_size or len(source), len(source))
        wanted = min(self._wanted, clients)
        if wanted > 1 and len(self._workers) < wanted:
            before = _free(self._job.spec.device)
            self.first.prepare(source, received, rows)
            taken = max(1, before - _free(self._job.spec.device))
            room = int(_free(self._job.spec.device) * (1 - _SPARED)) // taken
            with suppress(torch.cuda.OutOfMemoryError):
                while len(self._workers) < min(wanted, 1 + room):
                    worker = StreamWorker(self._job)
                    worker.prepare(source, received, rows)
                    self._workers.append(worker)
            self._wanted = len(self._workers)
        return [self.first, *self._workers[1:wanted]]


def shared_out(loads: Mapping[int, int], workers: int) -> list[list[int]]:
    """Which clients each worker trains: the largest first, each to the worker that has least to do."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    for client in sorted(loads, key=lambda client: (-loads[client], client)):
        min(shares, key=lambda share: sum(loads[other] for other in share)).append(client)
    return shares


def side_by_side(workers: Sequence[StreamWorker], works: Sequence[Iterator[None]]) -> None:
    """Advance all workers in turns, a launch at a time, after what was launched before and before what follows."""
    main = torch.cuda.current_stream(workers[0].stream.device)
    for worker in workers:
        worker.stream.wait_stream(main)
    going = list(zip(workers, works, strict=True))
    while going:
        going = [(worker, work) for worker, work in going if _advanced(worker, work)]
    for worker in workers:
        main.wait_stream(worker.stream)


def _advanced(worker: StreamWorker, work: Iterator[None]) -> bool:
    """Launch the next piece of a worker's work; False if there is none."""
    with torch.cuda.stream(worker.stream):
        return next(work, _ENDED) is not _ENDED


def _free(device: torch.device) -> int:
    """Bytes of the GPU that nobody holds, blocks that torch keeps for reuse given back first."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
