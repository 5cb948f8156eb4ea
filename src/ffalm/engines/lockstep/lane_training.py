"""Local training and scoring of one client's rows in all lanes at once. A lane is a job; the batches are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms import Measure, State
from ffalm.data.types import Examples
from ffalm.engines.common import broadcast, own_state
from ffalm.engines.jobs import ClientSpec, Snapshot
from ffalm.engines.lockstep.lane_steps import AlgorithmLanes, LaneModel, LaneSteps, lane_losses
from ffalm.engines.lockstep.lane_weights import LaneWeights
from ffalm.fairness import Tally
from ffalm.system.hardware import on_device

_SCORED_BATCHES = 2  # of the size of a training batch that all lanes score at a time: scoring keeps less of each row
_SCORED_ROWS = 256  # that all lanes score at a time where batches are smaller
_FEWER_LANES = 4  # times as many rows at most where few lanes score: small kernels end before a CPU launches the next


@dataclass(frozen=True)
class LaneResults:
    """What was seen while a client trained, for each lane; still on the device, since reading would make it wait."""

    loss: Tensor  # mean over the steps of the batch's mean loss
    negative: Tensor  # share of the steps that pushed some row's loss up
    tally: Tally  # what the lane's algorithm measures; of all batches if it measures nothing

    def to_cpu(self) -> LaneResults:
        """The same in main memory."""
        return LaneResults(self.loss.cpu(), self.negative.cpu(), self.tally.to("cpu"))


class LaneTrainer:
    """Trains and scores lanes, each by its own spec's algorithm; those whose clients do the same are neighbours."""

    def __init__(self, model: LaneModel, weights: LaneWeights, specs: Sequence[ClientSpec]) -> None:
        self._model, self._weights = model, weights
        self._steps = LaneSteps(model, weights, _groups(specs))

    def train(self, rows: Examples, batches: Sequence[Tensor], sent: Sequence[Snapshot], counts: Tensor, lr: float,
              ) -> LaneResults:  # fmt: skip
        """Move every lane's weights along the same batches, in place; `counts` are the client's per (label, group)."""
        groups = self._steps.groups
        self._steps.begin([self._state(group, sent, counts) for group in groups], lr)
        received = self._scored(rows, Measure.RECEIVED)
        with on_device(rows.y.device):
            seen = [self._steps.step(rows, numbers) for numbers in batches]
        losses, predicted = torch.cat([one.losses for one in seen], 1), torch.cat([one.predicted for one in seen], 1)
        tally = self._tally(predicted, losses, rows.take(torch.cat(list(batches))))
        last = self._tally(seen[-1].predicted, seen[-1].losses, rows.take(batches[-1]))
        measured = [*received, *self._scored(rows, Measure.TRAINED)]
        of_last = [group.lanes for group in groups if group.algorithm.measure is Measure.LAST_BATCH]
        measured += [(lanes, last[lanes]) for lanes in of_last]
        for lanes, found in measured:
            tally.confusion[lanes], tally.loss[lanes] = found.confusion, found.loss
        means = torch.stack([one.losses.mean(1) for one in seen]).double()
        return LaneResults(means.mean(0), torch.stack([one.raised for one in seen]).double().mean(0), tally)

    @torch.no_grad()
    def score(self, rows: Examples, lanes: slice | None = None) -> Tally:
        """The Tally on these rows of each lane, or of some, in evaluation mode."""
        weights = self._weights if lanes is None else self._weights[lanes]
        predicted, losses = [], []
        size = max(_SCORED_ROWS, _SCORED_BATCHES * (self._model.spec.training.batch_size or 0))
        size *= min(_FEWER_LANES, len(self._weights) // len(weights))
        for some in torch.split(torch.arange(len(rows), device=rows.y.device), size):
            part = rows.take(some)
            with on_device(rows.y.device):
                outputs = self._model.logits(weights, part.x, training=False)
            predicted.append(outputs.argmax(-1))
            losses.append(lane_losses(outputs, part.y))
        return self._tally(torch.cat(predicted, 1), torch.cat(losses, 1), rows)

    def _scored(self, rows: Examples, measure: Measure) -> list[tuple[slice, Tally]]:
        """The Tallies of the models as they are now, of the lanes that measure this one; these are neighbours."""
        measuring = [group.lanes for group in self._steps.groups if group.algorithm.measure is measure]
        if not measuring:
            return []
        lanes = slice(measuring[0].start, measuring[-1].stop)
        return [(lanes, self.score(rows, lanes))]

    def _state(self, group: AlgorithmLanes, sent: Sequence[Snapshot], counts: Tensor) -> State:
        """What the clients of a group of lanes know: what they were sent, and what they add themselves."""
        spec, algorithm = self._model.spec, group.algorithm
        states = [broadcast(algorithm, one.state, self._model.dtype, spec.device) for one in sent[group.lanes]]
        state = {name: torch.stack([one[name] for one in states]) for name in states[0]}
        if algorithm.overrides("own_state"):
            own = own_state(algorithm, spec.task, counts, self._model.dtype, spec.device)
            state |= {name: value.expand(len(states), *value.shape) for name, value in own.items()}
        return state

    def _tally(self, predicted: Tensor, losses: Tensor, rows: Examples) -> Tally:
        task = self._model.spec.task
        y, group = rows.y.expand(len(losses), -1), rows.group.expand(len(losses), -1)
        return Tally.of(predicted, losses, y, group, (task.labels, task.groups))


def _groups(specs: Sequence[ClientSpec]) -> list[AlgorithmLanes]:
    """Runs of lanes whose clients do the same."""
    found: list[AlgorithmLanes] = []
    first = 0
    while first < len(specs):
        end = first + 1
        while end < len(specs) and specs[first].algorithm.trains_like(specs[end].algorithm):
            end += 1
        found.append(AlgorithmLanes(specs[first].algorithm, slice(first, end), {}))
        first = end
    return found
