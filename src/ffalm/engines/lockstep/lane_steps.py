"""One training step of all lanes, in buffers that stay where they are: a GPU captures it once and replays it.

A step of many algorithms launches hundreds of small kernels beside the large ones of the network; replayed, they cost
no time of a CPU. Each size of batch has its own capture, and all of them share their memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from ffalm.algorithms import Algorithm, Batch, Rows, State
from ffalm.data.compact_features import take_rows
from ffalm.data.types import Examples
from ffalm.engines.common import inputs, raised_losses
from ffalm.engines.jobs import ClientSpec
from ffalm.engines.lockstep.lane_network import LaneNetwork
from ffalm.engines.lockstep.lane_weights import LaneWeights

_SIZES_KEPT = 24  # sizes of batches whose steps are kept; unequal clients have many last batches


@dataclass(frozen=True)
class AlgorithmLanes:
    """Neighbouring lanes whose clients do the same, each with its own state."""

    algorithm: Algorithm
    lanes: slice
    state: State  # with a leading axis of these lanes

    def receive(self, state: State) -> None:
        """Take over a client's state, into the buffers that steps read."""
        for name, value in state.items():
            if name in self.state:
                self.state[name].copy_(value)
            else:
                self.state[name] = value.clone()


@dataclass(frozen=True)
class StepOutput:
    """What a step computed, for each lane."""

    losses: Tensor  # (lane, row)
    predicted: Tensor  # (lane, row)
    raised: Tensor  # (lane): whether the step pushes some row's loss up

    def copied(self) -> StepOutput:
        """Apart from the buffers that the next step writes over."""
        return StepOutput(self.losses.clone(), self.predicted.clone(), self.raised.clone())


@dataclass(frozen=True)
class LaneModel:
    """A network with what computes it, as steps and scoring use it."""

    spec: ClientSpec  # of any of the lanes: tasks, training, device and precision are the same
    network: LaneNetwork
    dtype: torch.dtype  # of losses and states

    def logits(self, weights: LaneWeights, x: Tensor, training: bool) -> Tensor:
        """(lane, row, label) in the precision of the parameters."""
        low = torch.bfloat16 if self.spec.precision == "bf16" else self.dtype
        return self.network.logits(weights, inputs(x, low), training)


class LaneSteps:
    """The training steps of some lanes, with the buffers that they read."""

    def __init__(self, model: LaneModel, weights: LaneWeights, groups: Sequence[AlgorithmLanes]) -> None:
        self._model, self._weights, self.groups = model, weights, groups
        self._lr = torch.zeros((), dtype=model.dtype, device=weights.values.device)
        self._steps: OrderedDict[int, tuple[Examples, Callable[[], StepOutput]]] = OrderedDict()
        self._pool: Any = torch.cuda.graph_pool_handle() if weights.values.is_cuda else None

    def begin(self, states: Sequence[State], lr: float) -> None:
        """Start a client's round, from a state for each group of lanes."""
        for group, state in zip(self.groups, states, strict=True):
            group.receive(state)
        self._lr.fill_(lr)

    def step(self, source: Examples, rows: Tensor) -> StepOutput:
        """Train every lane on these rows of a client."""
        size = len(rows)
        if size not in self._steps:
            if len(self._steps) >= _SIZES_KEPT:
                self._steps.popitem(last=False)
            self._steps[size] = self._prepared(source, size)
        self._steps.move_to_end(size)
        batch, work = self._steps[size]
        batch.x.copy_(take_rows(source.x, rows))
        torch.index_select(source.y, 0, rows, out=batch.y)
        torch.index_select(source.group, 0, rows, out=batch.group)
        return work()

    def _prepared(self, source: Examples, rows: int) -> tuple[Examples, Callable[[], StepOutput]]:
        like = source.take(torch.arange(rows, device=source.y.device) % len(source))
        batch = Examples(torch.cat([like.x]), like.y, like.group)  # plain, of compact features too
        if self._pool is None:
            return batch, lambda: self._train_on(batch)
        graph, seen = self._captured(batch)

        def replayed() -> StepOutput:
            graph.replay()
            return seen.copied()

        return batch, replayed

    def _captured(self, batch: Examples) -> tuple[torch.cuda.CUDAGraph, StepOutput]:
        """The step as a CUDA graph; the weights are left as they were."""
        kept = self._weights.values.clone()
        stream = torch.cuda.Stream(batch.y.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(batch.y.device))
        with torch.cuda.stream(stream):  # kernels are compiled and libraries allocate what they keep
            self._train_on(batch)
        torch.cuda.current_stream(batch.y.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            seen = self._train_on(batch)
        self._weights.load(kept.unbind())
        return graph, seen

    def _train_on(self, batch: Examples) -> StepOutput:
        """One step of SGD in each lane along its own gradient."""
        model, weights = self._model, self._weights
        task, clip = model.spec.task, model.spec.training.clip
        logits = model.logits(weights, batch.x, training=True)
        outputs = logits.detach()
        losses = lane_losses(outputs, batch.y)
        by_loss = outputs.softmax(-1) - one_hot(batch.y, task.labels)
        by_logits = torch.empty_like(outputs)
        raised = torch.empty(len(weights), dtype=torch.bool, device=outputs.device)
        known = batch.y, batch.group, torch.ones_like(batch.y, dtype=torch.bool)
        for group in self.groups:
            lanes, own = group.lanes, outputs[group.lanes]
            labels, groups, mask = (one.expand(len(own), -1) for one in known)
            by_outputs = group.algorithm.by_outputs(task)
            given = Batch(Rows(labels, groups, mask, task), losses[lanes], own if by_outputs else None)
            slopes = group.algorithm.slopes(given, group.state)
            if by_outputs:
                by_logits[lanes] = slopes
                raised[lanes] = raised_losses(slopes, own, labels).any(1)
            else:
                by_logits[lanes] = slopes.unsqueeze(-1) * by_loss[lanes]
                raised[lanes] = (slopes < 0).any(-1)
        torch.autograd.backward(logits, by_logits)
        rates = self._lr.expand(len(weights)).contiguous()
        if clip is not None:
            norms: Tensor = torch.linalg.vector_norm(weights.gradient, dim=1)
            rates = rates * (clip / norms).clamp(max=1.0)
        model.network.layers.sgd_step(weights.parameters, weights.gradient, weights.read, rates)
        return StepOutput(losses, outputs.argmax(-1), raised)


def lane_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of each lane's rows."""
    flat = cross_entropy(outputs.flatten(0, 1), labels.repeat(len(outputs)), reduction="none")
    return flat.view(outputs.shape[:2])
