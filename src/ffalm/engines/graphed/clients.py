"""The clients of one job on a GPU, several of them in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ffalm.algorithms import Measure, State
from ffalm.data.types import Examples
from ffalm.engines.base import Job, Snapshot
from ffalm.engines.common import broadcast, built_model, dtype_of
from ffalm.engines.graphed.lane import Lane
from ffalm.engines.graphed.lanes import Lanes, shared_out, side_by_side
from ffalm.engines.rounds import Reply
from ffalm.engines.sampling import batches
from ffalm.fairness import Tally


@dataclass(frozen=True)
class _Trained:
    """A reply that still lies on the GPU: reading it at once would make the GPU wait for us."""

    model: dict[str, Tensor]
    tally: Tally
    sums: Tensor  # of the steps' losses, and of the steps with a negative row weight
    steps: int


class GraphedClients:
    """All the job's rows lie in one array on the GPU; clients are ranges of it."""

    def __init__(self, job: Job, lanes: Lanes) -> None:
        self._job, self._lanes = job, lanes
        federation = job.federation
        parts = [*federation.clients, *([] if federation.validation is None else [federation.validation])]
        self._rows = _joined(parts, job.device)
        ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).tolist()
        self._ranges = list(pairwise(ends))
        self._all_rows = torch.arange(ends[-1], device=job.device)

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        model = built_model(self._job)
        self._dtype = dtype_of(model)
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def merge(self, replies: Sequence[Reply], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of the replies' models."""
        return self._lanes.first.flat.average([reply.model for reply in replies], weights)

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model."""
        if self._job.federation.validation is None:
            return None
        lane = self._lanes.first
        side_by_side([lane], [self._validation(lane, model)])
        return lane.tally.to("cpu")

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, Reply]:
        """The chosen clients, spread over the lanes; nothing is read back before all of them are done."""
        state = broadcast(self._job.algorithm, sent.state, self._dtype, self._job.device)
        orders = self._orders(chosen, sent.round + 1)
        lanes = self._lanes.open(len(chosen), self._rows, state)
        shares = shared_out({client: len(self._part(client)) for client in chosen}, len(lanes))
        done: dict[int, _Trained] = {}
        works = [self._work(lane, share, sent, state, orders, done) for lane, share in zip(lanes, shares, strict=True)]
        side_by_side(lanes, works)
        sums = torch.stack([done[client].sums for client in chosen]).tolist()
        return {
            client: Reply(
                done[client].model,
                done[client].tally.to("cpu"),
                loss / done[client].steps,
                negative / done[client].steps,
            )
            for client, (loss, negative) in zip(chosen, sums, strict=True)
        }

    def _work(
        self,
        lane: Lane,
        clients: Sequence[int],
        sent: Snapshot,
        state: State,
        orders: dict[int, tuple[Tensor, ...]],
        done: dict[int, _Trained],
    ) -> Iterator[None]:
        """Local SGD of some clients, one after the other, and the Tally that the algorithm asks for."""
        wanted = self._job.algorithm.measure
        for client in clients:
            lane.receive(sent.model, state, self._job.training.lr_at(sent.round + 1))
            tally = None
            if wanted is Measure.RECEIVED:
                yield from lane.evaluate(self._rows, self._part(client))
                tally = lane.told()
                lane.clear()
            for rows in orders[client]:
                lane.step(self._rows, rows)
                yield
            sums = torch.stack([lane.loss, lane.negative])
            if wanted is Measure.TRAINED:
                lane.clear()
                yield from lane.evaluate(self._rows, self._part(client))
            done[client] = _Trained(lane.flat.copied(), tally or lane.told(), sums, len(orders[client]))

    def _validation(self, lane: Lane, model: dict[str, Tensor]) -> Iterator[None]:
        lane.flat.load(model)
        lane.clear()
        yield from lane.evaluate(self._rows, self._part(len(self._ranges) - 1))

    def _orders(self, chosen: Sequence[int], round: int) -> dict[int, tuple[Tensor, ...]]:
        """The row numbers of every client's every batch, brought to the GPU in one go."""
        steps = {
            client: batches(self._job.seed, round, client, len(self._part(client)), self._job.training)
            for client in chosen
        }
        firsts = [self._ranges[client][0] for client in chosen]
        joined = torch.cat([torch.cat(steps[client]) + first for client, first in zip(chosen, firsts, strict=True)])
        sizes = [[len(step) for step in steps[client]] for client in chosen]
        by_client = torch.split(joined.to(self._job.device), [sum(of_client) for of_client in sizes])
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
