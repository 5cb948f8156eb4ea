"""Jobs of one seed that go through their rounds together, one lane each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ffalm.algorithms import Measure
from ffalm.engines.common import dtype_of
from ffalm.engines.jobs import Round
from ffalm.engines.lockstep.lane_network import LaneNetwork
from ffalm.engines.lockstep.lane_steps import LaneModel
from ffalm.engines.lockstep.lane_training import LaneResults, LaneTrainer
from ffalm.engines.lockstep.lane_weights import LaneWeights, VectorLayout
from ffalm.engines.lockstep.layer_graph import read_layers
from ffalm.engines.lockstep.layers import Layers
from ffalm.engines.prepared_jobs import PreparedJob
from ffalm.engines.sampling import batches, participants
from ffalm.engines.server import Mean, TrainingSummary, average, held_out_metrics
from ffalm.fairness import Tally

_SCORING = (Measure.RECEIVED, Measure.TRAINED)  # the Tallies that take a pass over all rows of a client


class LaneStack:
    """Jobs with the same rows, batches and kind of model; their algorithms may differ."""

    def __init__(self, jobs: Sequence[PreparedJob], layers: Layers) -> None:
        self._jobs = ordered(jobs)
        first = self._jobs[0]
        self._spec, self._federation = first.job.spec, first.job.federation
        device = self._spec.device
        self._layout = VectorLayout(first.model)
        self._model = LaneModel(self._spec, LaneNetwork(read_layers(first.model), layers), dtype_of(first.model))
        low = torch.bfloat16 if self._spec.precision == "bf16" else None
        self._weights = LaneWeights(self._layout, len(jobs), device, low)
        self._clients = [examples.to(device) for examples in self._federation.clients]
        validation = self._federation.validation
        self._validation = None if validation is None else validation.to(device)
        self._now = [one.start for one in self._jobs]
        begun = [self._layout.vector(one.model, device) for one in self._now]
        self._vectors, self._counters = [vector for vector, _ in begun], [counters for _, counters in begun]

    def rounds(self) -> Iterator[tuple[int, Round]]:
        """Every round of every job; a job that diverges ends, the others go on."""
        going = list(range(len(self._jobs)))
        trainer = self._trainer(going)
        scores = self._scores(trainer, going)
        for number in range(self._now[0].round + 1, self._spec.training.rounds + 1):
            began = time.perf_counter()
            served = self._round(trainer, number, going, scores)
            scores = self._scores(trainer, going)
            metrics = held_out_metrics([scores[job] for job in going] if scores else [], self._spec.task)
            seconds = (time.perf_counter() - began) / len(going)
            before = list(going)
            for place, job in enumerate(before):
                weights, summary = served[job]
                shown = metrics[place] if metrics else {}
                done = self._jobs[job].context.round(self._now[job], weights, shown, summary, seconds=seconds)
                yield self._jobs[job].number, done
                if done.diverged:
                    going.remove(job)
            if not going:
                return
            if going != before:
                trainer = self._trainer(going)

    def _trainer(self, going: list[int]) -> LaneTrainer:
        """What trains the lanes of these jobs."""
        return LaneTrainer(self._model, self._weights[: len(going)], [self._jobs[job].job.spec for job in going])

    def _round(
        self, trainer: LaneTrainer, number: int, going: list[int], scores: dict[int, Tally]
    ) -> dict[int, tuple[Tensor, TrainingSummary]]:
        """Train all clients and take every server's step; the clients' weights, and what was seen of their training."""
        clients = len(self._clients)
        chosen = participants(self._spec.seed, number, clients, self._spec.training.participation)
        models, seen = zip(*(self._trained(trainer, number, client, going) for client in chosen), strict=True)
        seen = tuple(one.to_cpu() for one in seen)
        steps = [self._steps(number, client) for client in chosen]
        return {
            job: self._served(number, job, place, chosen, models, seen, max(map(len, steps)), scores.get(job))
            for place, job in enumerate(going)
        }

    def _trained(self, trainer: LaneTrainer, number: int, client: int, going: list[int]) -> tuple[Tensor, LaneResults]:
        """One client of every job: the vectors of their models, and what was seen."""
        weights, rows = self._weights[: len(going)], self._clients[client]
        weights.load([self._vectors[job] for job in going])
        sent, counts = [self._now[job] for job in going], self._jobs[0].context.counts[client]
        steps = [step.to(rows.y.device) for step in self._steps(number, client)]
        seen = trainer.train(rows, steps, sent, counts, self._spec.training.lr_at(number))
        return weights.values.clone(), seen

    def _steps(self, number: int, client: int) -> list[Tensor]:
        return batches(self._spec.seed, number, client, len(self._clients[client]), self._spec.training)

    def _served(
        self, number: int, job: int, place: int, chosen: list[int], models: Sequence[Tensor],
        seen: Sequence[LaneResults], steps: int, validation: Tally | None,
    ) -> tuple[Tensor, TrainingSummary]:  # fmt: skip
        """The server's part of a round for one job; `place` is its lane, `steps` the most that a client took."""
        context, now = self._jobs[job].context, self._now[job]
        report = context.report(number, chosen, Tally.stack([one.tally[place] for one in seen]), validation)
        weights, state = context.update(now, report)
        vector = average([{"all": model[place]} for model in models], weights[chosen])["all"]
        counters = {name: value + steps for name, value in self._counters[job].items()}
        mean = Mean(self._layout.model(vector, counters))
        self._now[job] = context.advance(now, report, state, mean, {})
        self._vectors[job], self._counters[job] = vector, counters
        loss, negative = (sum(float(one[place]) for one in kind) / len(seen) for kind in (
            [one.loss for one in seen], [one.negative for one in seen]
        ))  # fmt: skip
        return weights, TrainingSummary(loss, negative)

    def _scores(self, trainer: LaneTrainer, going: list[int]) -> dict[int, Tally]:
        """Every job's Tally of its present model on the validation part, if there is one."""
        if self._validation is None:
            return {}
        self._weights[: len(going)].load([self._vectors[job] for job in going])
        found = trainer.score(self._validation).to("cpu")
        return {job: found[place] for place, job in enumerate(going)}


def ordered(jobs: Sequence[PreparedJob]) -> list[PreparedJob]:
    """Jobs whose clients do the same beside each other, and those that need the same pass over all rows."""
    kinds: list[PreparedJob] = []

    def kind(one: PreparedJob) -> int:
        algorithm = one.job.spec.algorithm
        for place, other in enumerate(kinds):
            if other.job.spec.algorithm.trains_like(algorithm):
                return place
        kinds.append(one)
        return len(kinds) - 1

    numbered = [(_measured(one), kind(one), place) for place, one in enumerate(jobs)]
    return [jobs[place] for _, _, place in sorted(numbered)]


def _measured(one: PreparedJob) -> int:
    measure = one.job.spec.algorithm.measure
    return _SCORING.index(measure) if measure in _SCORING else len(_SCORING)
