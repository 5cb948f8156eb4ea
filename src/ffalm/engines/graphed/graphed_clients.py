"""The clients of one job on a GPU, several of them in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ffalm.algorithms import Measure
from ffalm.data.types import Examples
from ffalm.engines.common import broadcast, broadcast_vectors, built_model, dtype_of, own_state
from ffalm.engines.graphed.worker import ClientInput, StreamWorker
from ffalm.engines.graphed.worker_pool import WorkerPool, shared_out, side_by_side
from ffalm.engines.jobs import Job, Model, Snapshot
from ffalm.engines.loop import client_vectors
from ffalm.engines.sampling import batches
from ffalm.engines.server import Clients, ClientUpdate
from ffalm.fairness import Tally


@dataclass(frozen=True)
class _Trained:
    """An update that still lies on the GPU: reading it at once would make the GPU wait for us."""

    model: Model
    tally: Tally
    sums: Tensor  # of the steps' losses, and of the steps that pushed some row's loss up
    steps: int
    own: dict[str, Model]
    uploads: dict[str, Model]


class GraphedClients(Clients):
    """All the job's rows lie in one array on the GPU; clients are ranges of it."""

    def __init__(self, job: Job, pool: WorkerPool) -> None:
        self._job, self._pool = job, pool
        federation = job.federation
        parts = [*federation.clients, *([] if federation.validation is None else [federation.validation])]
        self._rows, self._counts = _joined(parts, job.spec.device), federation.counts()
        ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).tolist()
        self._ranges = list(pairwise(ends))
        self._all_rows = torch.arange(ends[-1], device=job.spec.device)

    def begin(self) -> Model:
        """The freshly initialised model."""
        model = built_model(self._job.spec)
        self._dtype = dtype_of(model)
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def average(self, models: Sequence[Model], weights: Tensor) -> Model:
        """Their weighted mean, each model being one vector."""
        return self._pool.first.flat.average(models, weights)

    def validate(self, model: Model) -> Tally | None:
        """The validation part's Tally of a model."""
        if self._job.federation.validation is None:
            return None
        worker = self._pool.first
        side_by_side([worker], [self._validation(worker, model)])
        return worker.tally.to("cpu")

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """The chosen clients, spread over the workers; nothing is read back before all of them are done."""
        orders = self._orders(chosen, sent.round + 1)
        received = self._received(chosen, sent)
        workers = self._pool.open(len(chosen), self._rows, received[chosen[0]])
        shares = shared_out({client: len(self._part(client)) for client in chosen}, len(workers))
        lr, done = self._job.spec.training.lr_at(sent.round + 1), dict[int, _Trained]()
        works = [
            self._work(worker, {client: received[client] for client in share}, lr, orders, done)
            for worker, share in zip(workers, shares, strict=True)
        ]
        side_by_side(workers, works)
        sums = torch.stack([done[client].sums for client in chosen]).tolist()
        return {
            client: ClientUpdate(
                done[client].model,
                done[client].tally.to("cpu"),
                loss / done[client].steps,
                negative / done[client].steps,
                done[client].uploads,
                done[client].own,
            )
            for client, (loss, negative) in zip(chosen, sums, strict=True)
        }

    def _received(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientInput]:
        spec = self._job.spec
        state = broadcast(spec.algorithm, sent.state, self._dtype, spec.device)
        vectors = broadcast_vectors(spec.algorithm, sent.vectors)
        own = {client: own_state(spec.algorithm, spec.task, self._counts[client], self._dtype, spec.device)
               for client in chosen}  # fmt: skip
        return {
            client: ClientInput(sent.model, {**state, **own[client]}, vectors, client_vectors(sent, client))
            for client in chosen
        }

    def _work(
        self,
        worker: StreamWorker,
        clients: Mapping[int, ClientInput],
        lr: float,
        orders: dict[int, tuple[Tensor, ...]],
        done: dict[int, _Trained],
    ) -> Iterator[None]:
        """Local training of some clients, one after the other, and the Tally that the algorithm measures."""
        wanted = self._job.spec.algorithm.measure
        for client, received in clients.items():
            worker.receive(received, lr)
            tally = None
            if wanted is Measure.RECEIVED:
                yield from worker.evaluate(self._rows, self._part(client))
                tally = worker.summed_tally()
                worker.clear()
            for rows in orders[client]:
                worker.step(self._rows, rows)
                yield
            sums = torch.stack([worker.loss, worker.negative])
            steps = len(orders[client])
            own, uploads = worker.local.finish(steps, lr)
            if wanted is Measure.TRAINED:
                worker.clear()
                yield from worker.evaluate(self._rows, self._part(client))
            done[client] = _Trained(worker.flat.copied(), tally or worker.summed_tally(), sums, steps, own, uploads)

    def _validation(self, worker: StreamWorker, model: Model) -> Iterator[None]:
        worker.flat.load(model)
        worker.clear()
        yield from worker.evaluate(self._rows, self._part(len(self._ranges) - 1))

    def _orders(self, chosen: Sequence[int], round: int) -> dict[int, tuple[Tensor, ...]]:
        """The row numbers of every client's every batch, brought to the GPU in one go."""
        steps = {
            client: batches(self._job.spec.seed, round, client, len(self._part(client)), self._job.spec.training)
            for client in chosen
        }
        firsts = [self._ranges[client][0] for client in chosen]
        joined = torch.cat([torch.cat(steps[client]) + first for client, first in zip(chosen, firsts, strict=True)])
        sizes = [[len(step) for step in steps[client]] for client in chosen]
        by_client = torch.split(joined.to(self._job.spec.device), [sum(of_client) for of_client in sizes])
        return {
            client: torch.split(rows, of_client)
            for client, rows, of_client in zip(chosen, by_client, sizes, strict=True)
        }

    def _part(self, part: int) -> Tensor:
        first, end = self._ranges[part]
        return self._all_rows[first:end]


def _joined(parts: Sequence[Examples], device: torch.device) -> Examples:
    """Several parts' rows in one place."""
    return Examples(
        torch.cat([part.x for part in parts]).to(device),
        torch.cat([part.y for part in parts]).to(device),
        torch.cat([part.group for part in parts]).to(device),
    )
