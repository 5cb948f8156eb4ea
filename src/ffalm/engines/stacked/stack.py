"""A stack of jobs that advance together, one round at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from ffalm.algorithms import Measure, ModelVector, Sent, State, Vectors
from ffalm.algorithms.contract import CHANGE
from ffalm.engines.common import broadcast, broadcast_vectors, dtype_of, own_state
from ffalm.engines.contract_checks import check_finish, check_upload_weights
from ffalm.engines.inner_products import inner_products
from ffalm.engines.jobs import Model, Round
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.prepared_jobs import PreparedJob
from ffalm.engines.sampling import drawn, participants
from ffalm.engines.server import Mean, TrainingSummary, held_out_metrics
from ffalm.engines.stacked.choose import kernel_for
from ffalm.engines.stacked.client_gradients import client_gradients
from ffalm.engines.stacked.kernels import Weights
from ffalm.engines.stacked.needs import LEAST_SCORED, working_bytes
from ffalm.engines.stacked.plans import Plans
from ffalm.engines.stacked.row_layout import Span, row_layout_of
from ffalm.engines.stacked.schedule import ClientSlot, chunks, ordered, training_steps
from ffalm.engines.stacked.scoring import Plan, StackedRows, score, scoring_plan
from ffalm.engines.stacked.training import LaneInput, LaneResults, train
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded
from ffalm.system.memory import give_back, out_of_memory

_SCORED_ROWS = 8192  # rows that are scored at a time: enough to share the work, few enough to stay in cache
_AVERAGED = 2**18  # numbers that are averaged at a time: their float64 copies stay in cache

Weighed = dict[int, tuple[Tensor, TrainingSummary]]
"""For each job the clients' weights, and what was seen of their training."""

Named = dict[str, Model]
"""Model-sized vectors by name and parameter, with a leading axis of slots."""


@dataclass(frozen=True)
class _Done:
    """What became of a round's slots: their models, what was seen of their training, and their vectors."""

    slots: list[ClientSlot]
    weights: Weights
    seen: LaneResults
    own: Named
    uploads: Named

    @property
    def tensors(self) -> list[Tensor]:
        """All models and vectors, each with a leading axis of slots."""
        vectors = [vector for named in (self.own, self.uploads) for vector in named.values()]
        return [*self.weights.trained, *self.weights.fixed, *(value for one in vectors for value in one.values())]

    def room_for(self, slots: int) -> _Done:
        """The same form for more slots: chunks are put there one by one, so that none is held twice."""

        def room(entry: Tensor) -> Tensor:
            return entry.new_empty(slots, *entry.shape[1:])

        weights = Weights(*([room(entry) for entry in part] for part in (self.weights.trained, self.weights.fixed)))
        own, uploads = (
            {name: {key: room(value) for key, value in vector.items()} for name, vector in named.items()}
            for named in (self.own, self.uploads)
        )
        return replace(self, weights=weights, own=own, uploads=uploads)


class Stack:
    """Jobs with the same algorithm, training and kind of model, and everything they need on the device."""

    def __init__(self, jobs: Sequence[PreparedJob], budget: int) -> None:
        self._jobs = list(jobs)
        self._budget = budget
        self._spec = jobs[0].job.spec
        self._algorithm, self._training, self._device = self._spec.algorithm, self._spec.training, self._spec.device
        self._dtype = dtype_of(jobs[0].model)
        self._vectors = not (local_optimizer(self._training).plain and self._algorithm.only_averages)
        places = row_layout_of([one.job.federation for one in jobs])
        self._parts = places.parts
        self._kernel = kernel_for(jobs[0].model, [source.x for source in places.sources], self._spec)
        task = self._spec.task
        self._rows = StackedRows(
            self._kernel.table([source.x for source in places.sources]),
            torch.cat([source.y for source in places.sources]).to(self._device),
            torch.cat([source.group for source in places.sources]).to(self._device),
            (task.labels, task.groups),
            None if places.lookup is None else places.lookup.to(self._device),
        )
        self._now = [one.start for one in jobs]
        self._models = self._packed([one.model for one in self._now])
        self._slot_bytes, self._row_bytes = working_bytes(jobs[0].model, places.sources[0].x, self._spec)
        self._plans = Plans(sum(rows for parts in self._parts for _, rows in parts))

    def rounds(self) -> Iterator[tuple[int, Round]]:
        """Every round of every job; a job that diverges ends, the others go on."""
        going = list(range(len(self._jobs)))
        scores: dict[int, Tally] | None = None
        for number in range(self._now[0].round + 1, self._training.rounds + 1):
            began = time.perf_counter()
            weighed, scores = self._round(number, going, scores)
            metrics = dict(zip(scores, held_out_metrics(list(scores.values()), self._spec.task), strict=True))
            seconds = (time.perf_counter() - began) / len(going)
            for job in list(going):
                weights, seen = weighed[job]
                context = self._jobs[job].context
                done = context.round(self._now[job], weights, metrics.get(job, {}), seen, seconds=seconds)
                yield self._jobs[job].number, done
                if done.diverged:
                    going.remove(job)
            if not going:
                return

    def _round(
        self, number: int, going: list[int], sent_scores: dict[int, Tally] | None
    ) -> tuple[Weighed, dict[int, Tally]]:
        """One round; where memory runs out it begins anew in half the working memory, down to a slot at a time."""
        before = list(self._now)
        while True:
            found = self._attempt(number, going, sent_scores)
            if found is not None:
                return found
            give_back(self._device)
            self._budget //= 2
            self._now = list(before)
            self._models = self._packed([one.model for one in before])

    def _attempt(
        self, number: int, going: list[int], sent_scores: dict[int, Tally] | None
    ) -> tuple[Weighed, dict[int, Tally]] | None:
        """One round, None if memory ran out and less of it would still do."""
        try:
            sent_scores = self._scores(going) if sent_scores is None else sent_scores
            done = self._trained(number, going)
            weighed = {job: self._served(number, job, done, sent_scores.get(job)) for job in going}
            self._models = self._packed([one.model for one in self._now])
            return weighed, self._scores(going)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or self._budget < self._slot_bytes + self._row_bytes:
                raise
            self._plans.clear()
            return None

    def _trained(self, number: int, going: list[int]) -> _Done:
        """Local training of all clients that take part."""
        slots = ordered(self._slots(number, going))
        cut = chunks(slots, self._slot_bytes, self._row_bytes, self._budget)
        whole: _Done | None = None
        seen: list[LaneResults] = []
        end = 0
        with torch_seeded(self._spec.seed, Purpose.LAYERS, number):
            for chunk in cut:
                part = self._trained_chunk(number, chunk)
                seen.append(part.seen)
                whole = whole or (part if len(cut) == 1 else part.room_for(len(slots)))
                if len(cut) > 1:
                    for own, every in zip(part.tensors, whole.tensors, strict=True):
                        every[end : end + len(own)] = own
                end += len(chunk)
        assert whole is not None
        tallies = [one.tally for one in seen if one.tally is not None]
        tally = None
        if self._algorithm.measure is not Measure.NOTHING:
            tally = Tally(torch.cat([one.confusion for one in tallies]), torch.cat([one.loss for one in tallies]))
        values = [one.values for one in seen if one.values is not None]
        summary = LaneResults(
            torch.cat([one.loss for one in seen]),
            torch.cat([one.negative for one in seen]),
            tally,
            torch.cat(values) if values else None,
        )
        return replace(whole, slots=slots, seen=summary)

    def _trained_chunk(self, number: int, slots: list[ClientSlot]) -> _Done:
        """Local training of a few slots, from the models they were sent."""
        measure, lr = self._algorithm.measure, self._training.lr_at(number)
        job_of = torch.tensor([slot.job for slot in slots], device=self._device)
        weights = self._models.select(job_of)
        spans = [(slot.first, slot.rows) for slot in slots]
        stays = bool(self._algorithm.gradients) and measure is not Measure.NOTHING  # whichever Tally: of the same model
        tally = self._score(weights, spans) if measure is Measure.RECEIVED or stays else None
        received = self._received(slots, job_of, weights)
        steps = self._rows.found(training_steps(slots, self._device))
        gradients: Vectors = {}
        if self._algorithm.gradients:
            seen, gradients = client_gradients(
                self._kernel, self._spec, weights, self._rows, steps, received.sent.state
            )
        else:
            seen = train(self._kernel, self._spec, weights, self._rows, steps, received, lr)
        own: Named = {}
        uploads: Named = {}
        if self._algorithm.client_vectors or self._algorithm.uploads:
            taken = torch.bincount(steps.lanes, minlength=len(slots))
            finished = self._algorithm.finish(
                ModelVector(weights.trained), received.sent, received.own, taken.double(), lr
            )
            kept, sent = check_finish(self._algorithm, finished)
            own, uploads = (self._unpacked_vectors(named, weights) for named in (kept, {**sent, **gradients}))
        if measure is Measure.TRAINED:
            tally = self._score(weights, spans)
        return _Done(slots, weights, seen if tally is None else replace(seen, tally=tally), own, uploads)

    def _received(self, slots: list[ClientSlot], job_of: Tensor, weights: Weights) -> LaneInput:
        """What the slots' clients are sent and what they kept, laid out as the weights are."""
        sent = [broadcast(self._algorithm, one.state, self._dtype, self._device) for one in self._now]
        state = {name: torch.stack([one[name] for one in sent]).index_select(0, job_of) for name in sent[0]}
        state |= self._own_states(slots)
        if not self._vectors:
            return LaneInput(Sent(state, ModelVector(weights.trained)), {})
        jobs = [broadcast_vectors(self._algorithm, one.vectors) for one in self._now]
        vectors = {name: self._packed_vector([jobs[slot.job][name] for slot in slots]) for name in jobs[0]}
        own = {
            name: self._packed_vector([
                {key: value[slot.client] for key, value in self._now[slot.job].client_vectors[name].items()}
                for slot in slots
            ])
            for name in self._algorithm.client_vectors
        }  # fmt: skip
        return LaneInput(Sent(state, ModelVector([block.clone() for block in weights.trained]), vectors), own)

    def _own_states(self, slots: list[ClientSlot]) -> State:
        """What the slots' clients add to the state themselves."""
        if not self._algorithm.overrides("own_state"):
            return {}
        counts = [self._jobs[slot.job].context.counts[slot.client] for slot in slots]
        own = [own_state(self._algorithm, self._spec.task, one, self._dtype, self._device) for one in counts]
        return {name: torch.stack([one[name] for one in own]) for name in own[0]}

    def _served(self, number: int, job: int, done: _Done, validation: Tally | None) -> tuple[Tensor, TrainingSummary]:
        """The server's part of a round for one job."""
        one, now = self._jobs[job], self._now[job]
        own = sorted((place for place, slot in enumerate(done.slots) if slot.job == job),
                     key=lambda place: done.slots[place].client)  # fmt: skip
        chosen = [done.slots[place].client for place in own]
        at = torch.tensor(own)
        tally = None if done.seen.tally is None else done.seen.tally[at]
        values = None if done.seen.values is None else done.seen.values[at]
        products = self._products(job, done, at.to(self._device))
        report = one.context.report(number, chosen, tally, validation, values, products)
        weights, state = one.context.update(now, report)
        mean = self._mean(job, done, chosen, at.to(self._device), weights, state)
        kept = {
            client: {name: {key: value[place] for key, value in vector.items()} for name, vector in done.own.items()}
            for client, place in zip(chosen, own, strict=True)
        }
        self._now[job] = one.context.advance(now, report, state, mean, kept)
        return weights, TrainingSummary(float(done.seen.loss[at].mean()), float(done.seen.negative[at].mean()))

    def _products(self, job: int, done: _Done, own: Tensor) -> Tensor | None:
        """The inner products of a job's own slots that the algorithm names."""
        names = self._algorithm.products
        if not names:
            return None
        vectors = {name: done.uploads[name] for name in names if name != CHANGE}
        if CHANGE in names:
            vectors[CHANGE] = self._kernel.unpacked(done.weights)
        sent = self._now[job].model

        def number_of(name: str, key: str) -> Tensor:
            values = vectors[name][key].index_select(0, own)
            return (values - sent[key] if name == CHANGE else values).flatten(1)

        trained = self._jobs[job].context.trained
        return inner_products((torch.cat([number_of(name, key) for name in names]) for key in trained), len(names))

    def _mean(self, job: int, done: _Done, chosen: list[int], own: Tensor, weights: Tensor, state: State) -> Mean:
        """The weighted mean of a job's own slots, under privacy with noise."""
        shares = weights[chosen]
        privacy = self._jobs[job].context.privacy
        if privacy is not None:
            models = self._kernel.unpacked(done.weights.select(own))
            each = [{name: entry[place] for name, entry in models.items()} for place in range(len(own))]
            return Mean(privacy.merge(self._now[job].model, each, shares, self._now[job].round + 1))
        shares = shares.to(self._device)
        blocks = Weights(
            *([_average(entry, own, shares) for entry in part] for part in (done.weights.trained, done.weights.fixed))
        )
        model = {name: entry[0] for name, entry in self._kernel.unpacked(blocks).items()}
        of_uploads = check_upload_weights(self._algorithm, self._algorithm.weigh_uploads(weights, state))
        every = {name: values[chosen].to(self._device) for name, values in of_uploads.items()}
        uploads = {
            name: {key: _average(value, own, every[name])[0] for key, value in vector.items()}
            for name, vector in done.uploads.items()
        }
        return Mean(model, uploads)

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

    def _packed(self, models: Sequence[Model]) -> Weights:
        """The jobs' models as they are worked on."""
        entries = [{**one.extra, **model} for one, model in zip(self._jobs, models, strict=True)]
        return self._kernel.packed(
            {name: torch.stack([own[name].to(self._device) for own in entries]) for name in entries[0]}
        )

    def _packed_vector(self, vectors: Sequence[Model]) -> ModelVector:
        """Vectors over the trained parameters, laid out as weights are; the other entries play no part."""
        whole = {**self._jobs[0].extra, **self._now[0].model}
        entries = {
            name: torch.stack([own.get(name, like).to(self._device) for own in vectors]) for name, like in whole.items()
        }
        return ModelVector(self._kernel.packed(entries).trained)

    def _unpacked_vectors(self, vectors: Vectors, weights: Weights) -> Named:
        """The reverse of `_packed_vector`, for each of several."""
        trained = self._jobs[0].context.trained
        found = {
            name: self._kernel.unpacked(Weights(vector.tensors, weights.fixed)) for name, vector in vectors.items()
        }
        return {name: {key: entries[key] for key in trained} for name, entries in found.items()}

    def _slots(self, number: int, going: Sequence[int]) -> list[ClientSlot]:
        """The clients that take part in a round, with their batches, which jobs of one seed share."""
        draw = cache(partial(drawn, training=self._training))
        slots = []
        for job in going:
            seed, counts = self._jobs[job].job.spec.seed, self._jobs[job].context.counts
            for client in participants(seed, number, len(counts), self._training.participation):
                first, rows = self._parts[job][client]
                slots.append(ClientSlot(job, client, first, rows, *draw(seed, number, client, rows)))
        return slots


def _average(entry: Tensor, own: Tensor, shares: Tensor) -> Tensor:
    """The weighted mean of some entries of the leading axis, in float64; counters take the largest value.

    The leading axis stays, of length 1. A few entries at a time, so that their float64 copies stay in cache.
    """
    if not entry.dtype.is_floating_point:
        return entry.index_select(0, own).amax(0, keepdim=True)
    size = entry[0].numel()
    total = torch.zeros(size, dtype=torch.float64, device=entry.device)
    few = max(1, _AVERAGED // max(1, size))  # a block is empty if every input is looked up
    for some, weights in zip(torch.split(own, few), torch.split(shares, few), strict=True):
        total += weights.double() @ entry.index_select(0, some).double().flatten(1)
    return total.view(1, *entry.shape[1:]).to(entry.dtype)
