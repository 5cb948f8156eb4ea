"""A stack of jobs that advance together, one round at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ffalm.algorithms import Measure, Report
from ffalm.engines.base import Round, Snapshot
from ffalm.engines.common import broadcast, divergence, dtype_of, record_of
from ffalm.engines.memory import give_back, out_of_memory
from ffalm.engines.sampling import drawn, participants
from ffalm.engines.stacked.choose import kernel_for
from ffalm.engines.stacked.grouping import Ready
from ffalm.engines.stacked.kernels import Weights
from ffalm.engines.stacked.needs import LEAST_SCORED, working_bytes
from ffalm.engines.stacked.places import Span, places_of
from ffalm.engines.stacked.plans import Plans
from ffalm.engines.stacked.schedule import Lane, chunks, ordered, training_steps
from ffalm.engines.stacked.scoring import Plan, Rows, score, scoring_plan
from ffalm.engines.stacked.training import Trained, train
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded

_SCORED_ROWS = 8192  # rows that are scored at a time: enough to share the work, few enough to stay in cache
_AVERAGED = 2**18  # numbers that are averaged at a time: their float64 copies stay in cache

Records = dict[int, tuple[Tensor, dict[str, float]]]
"""For each job the clients' weights, and what was seen of their training."""


class Stack:
    """Jobs with the same algorithm, training and kind of model, and everything they need on the device."""

    def __init__(self, jobs: Sequence[Ready], budget: int) -> None:
        self._jobs = list(jobs)
        self._budget = budget
        first = jobs[0].job
        self._algorithm, self._training, self._device = first.algorithm, first.training, first.device
        self._dtype = dtype_of(jobs[0].model)
        places = places_of([one.job.federation for one in jobs])
        self._parts = places.parts
        self._kernel = kernel_for(jobs[0].model, [source.x for source in places.sources], self._device)
        task = first.federation.task
        self._rows = Rows(
            self._kernel.table([source.x for source in places.sources]),
            torch.cat([source.y for source in places.sources]).to(self._device),
            torch.cat([source.group for source in places.sources]).to(self._device),
            (task.labels, task.groups),
            None if places.lookup is None else places.lookup.to(self._device),
        )
        self._now = [one.start for one in jobs]
        self._models = self._packed(self._now)
        self._lane_bytes, self._row_bytes = working_bytes(jobs[0].model, places.sources[0].x)
        self._plans = Plans(sum(rows for parts in self._parts for _, rows in parts))

    def rounds(self) -> Iterator[tuple[int, Round]]:
        """Every round of every job; a job that diverges ends, the others go on."""
        going = list(range(len(self._jobs)))
        for number in range(self._now[0].round + 1, self._training.rounds + 1):
            began = time.perf_counter()
            records, scores = self._round(number, going)
            seconds = (time.perf_counter() - began) / len(going)
            for job in list(going):
                shares, seen = records[job]
                task = self._jobs[job].job.federation.task
                state = self._now[job].state
                seen = {**seen, "seconds": seconds}
                record = record_of(number, scores.get(job), task.favourable, state, shares, seen)
                ended = divergence(self._algorithm, number, seen["train_loss"], state, self._now[job].model)
                yield self._jobs[job].number, Round(record, self._now[job], ended)
                if ended:
                    going.remove(job)
            if not going:
                return

    def _round(self, number: int, going: list[int]) -> tuple[Records, dict[int, Tally]]:
        """One round; where memory runs out it begins anew in half the working memory, down to a lane at a time."""
        before = list(self._now)
        while True:
            found = self._attempt(number, going)
            if found is not None:
                return found
            give_back(self._device)
            self._budget //= 2
            self._now = list(before)
            self._models = self._packed(before)

    def _attempt(self, number: int, going: list[int]) -> tuple[Records, dict[int, Tally]] | None:
        """One round, None where memory ran out and less of it would still do."""
        try:
            lanes, weights, done = self._trained(number, going)
            records = {job: self._served(number, job, lanes, weights, done) for job in going}
            self._models = self._kernel.settled(self._models)
            return records, self._scores(going)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or self._budget < self._lane_bytes + self._row_bytes:
                raise
            self._plans.clear()
            return None

    def _trained(self, number: int, going: list[int]) -> tuple[list[Lane], Weights, Trained]:
        """Local training of all clients that take part: their lanes, models and what was seen of them."""
        lanes = ordered([lane for job in going for lane in self._lanes(number, job)])
        cut = chunks(lanes, self._lane_bytes, self._row_bytes, self._budget)
        together: Weights | None = None
        seen: list[Trained] = []
        end = 0
        with torch_seeded(self._jobs[0].job.seed, Purpose.LAYERS, number):
            for chunk in cut:
                weights, done = self._trained_chunk(number, chunk)
                seen.append(done)
                together = together or (weights if len(cut) == 1 else _room_for(len(lanes), weights))
                if len(cut) > 1:
                    _put(weights, together, end)
                end += len(chunk)
        assert together is not None
        tally = None
        if self._algorithm.measure is not Measure.NOTHING:
            found = [one.tally for one in seen if one.tally is not None]
            tally = Tally(torch.cat([one.confusion for one in found]), torch.cat([one.loss for one in found]))
        return lanes, together, Trained(
            torch.cat([one.loss for one in seen]), torch.cat([one.negative for one in seen]), tally
        )  # fmt: skip

    def _trained_chunk(self, number: int, lanes: list[Lane]) -> tuple[Weights, Trained]:
        """Local training of a few lanes, from the models they were sent."""
        measure = self._algorithm.measure
        job_of = torch.tensor([lane.job for lane in lanes], device=self._device)
        weights = self._models.select(job_of)
        spans = [(lane.first, lane.rows) for lane in lanes]
        received = self._score(weights, spans) if measure is Measure.RECEIVED else None
        sent = [broadcast(self._algorithm, one.state, self._dtype, self._device) for one in self._now]
        state = {
            name: torch.stack([own[name] for own in sent]).index_select(0, job_of)
            for name in self._algorithm.broadcasts
        }
        steps = self._rows.found(training_steps(lanes, self._device))
        done = train(
            self._kernel, self._algorithm, weights, self._rows, steps, state,
            self._training.lr_at(number), self._training.clip,
        )  # fmt: skip
        if measure is Measure.TRAINED:
            received = self._score(weights, spans)
        return weights, done if received is None else Trained(done.loss, done.negative, received)

    def _served(
        self, number: int, job: int, lanes: list[Lane], weights: Weights, done: Trained
    ) -> tuple[Tensor, dict[str, float]]:
        """The server's part of a round for one job: weigh the clients, average their models, move the state."""
        own = sorted((place for place, lane in enumerate(lanes) if lane.job == job), key=lambda at: lanes[at].client)
        chosen = [lanes[place].client for place in own]
        at = torch.tensor(own)
        counts = self._jobs[job].counts
        taking_part = torch.zeros(len(counts), dtype=torch.bool)
        taking_part[chosen] = True
        tally = None
        if done.tally is not None:
            tally = _spread(done.tally[at], chosen, len(counts))
        favourable = self._jobs[job].job.federation.task.favourable
        report = Report(number, counts.sum((-1, -2)), taking_part, tally, favourable)
        shares, state = self._algorithm.update(self._now[job].state, report)
        self._average(job, weights, at.to(self._device), shares[chosen].to(self._device))
        self._now[job] = Snapshot(number, self._model(job), state)
        return shares, {
            "train_loss": float(done.loss[at].mean()),
            "negative_weight_share": float(done.negative[at].mean()),
        }

    def _average(self, job: int, lanes: Weights, own: Tensor, shares: Tensor) -> None:
        """The weighted mean of a job's own lanes, in float64 and a few at a time; counters take the largest value."""
        for mine, theirs in zip(
            [*self._models.trained, *self._models.fixed], [*lanes.trained, *lanes.fixed], strict=True
        ):
            if not mine.dtype.is_floating_point:
                mine[job] = theirs.index_select(0, own).amax(0)
                continue
            total = torch.zeros(mine[job].numel(), dtype=torch.float64, device=mine.device)
            few = max(1, _AVERAGED // max(1, mine[job].numel()))  # a block is empty if every input is looked up
            for some, weights in zip(torch.split(own, few), torch.split(shares, few), strict=True):
                total += weights.double() @ theirs.index_select(0, some).double().flatten(1)
            mine[job] = total.view(mine.shape[1:])

    def _model(self, job: int) -> dict[str, Tensor]:
        """A copy of a job's global model."""
        one = self._models.select(torch.tensor([job], device=self._device))
        return {name: entry[0] for name, entry in self._kernel.unpacked(one).items()}

    def _scores(self, going: list[int]) -> dict[int, Tally]:
        """The global models on the validation parts of those jobs that have one."""
        scored = [job for job in going if self._jobs[job].job.federation.validation is not None]
        if not scored:
            return {}
        spans = [self._parts[job][-1] for job in scored]
        found = self._score(self._models.select(torch.tensor(scored, device=self._device)), spans)
        return {job: found[place] for place, job in enumerate(scored)}

    def _score(self, weights: Weights, spans: Sequence[Span]) -> Tally:
        """Tallies of copies of the model on their rows."""
        return score(self._kernel, weights, self._plans.of(spans, self._plan))

    def _plan(self, spans: Sequence[Span]) -> Plan:
        most = max(LEAST_SCORED, min(_SCORED_ROWS, self._budget // self._row_bytes))
        return scoring_plan(self._kernel, self._rows, spans, most, self._dtype)

    def _packed(self, snapshots: Sequence[Snapshot]) -> Weights:
        """The jobs' models as they are worked on."""
        entries = [{**one.extra, **own.model} for one, own in zip(self._jobs, snapshots, strict=True)]
        return self._kernel.packed(
            {name: torch.stack([own[name].to(self._device) for own in entries]) for name in entries[0]}
        )

    def _lanes(self, number: int, job: int) -> list[Lane]:
        """The clients of one job that take part in a round, with their batches."""
        one = self._jobs[job]
        clients = len(one.counts)
        lanes = []
        for client in participants(one.job.seed, number, clients, self._training.participation):
            first, rows = self._parts[job][client]
            lanes.append(Lane(job, client, first, rows, *drawn(one.job.seed, number, client, rows, self._training)))
        return lanes


def _room_for(lanes: int, like: Weights) -> Weights:
    """Where the models of this many lanes find room: chunks are put there one by one, so that none is held twice."""
    return Weights(
        *([entry.new_empty(lanes, *entry.shape[1:]) for entry in part] for part in (like.trained, like.fixed))
    )


def _put(weights: Weights, together: Weights, first: int) -> None:
    """Copy the models of some lanes to their place."""
    for own, every in zip([*weights.trained, *weights.fixed], [*together.trained, *together.fixed], strict=True):
        every[first : first + len(own)] = own


def _spread(tally: Tally, chosen: list[int], clients: int) -> Tally:
    """Tallies of the clients that took part, laid out over all clients; zeros for the others."""
    confusion = tally.confusion.new_zeros(clients, *tally.confusion.shape[1:])
    loss = tally.loss.new_zeros(clients, *tally.loss.shape[1:])
    confusion[chosen], loss[chosen] = tally.confusion, tally.loss
    return Tally(confusion, loss)
