"""A worker: a copy of the model with its captured steps, on a CUDA stream of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms import Measure, Rows, State
from ffalm.data.types import Examples
from ffalm.engines.common import autocast, built_model, dtype_of, gradients, inputs, row_losses
from ffalm.engines.flat import Flat
from ffalm.engines.jobs import Job, Model
from ffalm.engines.local import LocalOptimizer
from ffalm.fairness import Tally

_WARM_UPS = 3  # runs before a capture, in which libraries choose algorithms and allocate what they keep
_GRAPHS_KEPT = 24  # batch sizes held per worker; unequal clients have many last batches
_EVALUATED_ROWS = 1024


class _Batch:
    """Where a graph reads its rows from; filled before each replay."""

    def __init__(self, like: Examples, rows: int, device: torch.device) -> None:
        self.examples = Examples(
            torch.zeros(rows, *like.x.shape[1:], dtype=like.x.dtype, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        self.mask = torch.ones(rows, dtype=torch.bool, device=device)
        self._filled = rows

    def fill(self, source: Examples, rows: Tensor) -> None:
        """Gather rows on the device; fewer rows than there is room for leave the rest masked."""
        count = len(rows)
        torch.index_select(source.x, 0, rows, out=self.examples.x[:count])
        torch.index_select(source.y, 0, rows, out=self.examples.y[:count])
        torch.index_select(source.group, 0, rows, out=self.examples.group[:count])
        if count != self._filled:
            self.mask[:count] = True
            self.mask[count:] = False
            self._filled = count


@dataclass(frozen=True)
class ClientInput:
    """What a client starts a round from, on the device."""

    model: Model
    state: State
    vectors: dict[str, Model]
    own: dict[str, Model]


class StreamWorker:
    """A worker trains one client at a time; workers share nothing that is written, so they may run side by side.

    Everything here belongs to the worker's own stream, captures too: libraries keep a workspace per stream, which two
    graphs that run at the same time must not share. The graphs of one worker never do, so they share their memory.
    """

    def __init__(self, job: Job) -> None:
        self._spec = job.spec
        self.stream = torch.cuda.Stream(job.spec.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(job.spec.device))
        with torch.cuda.stream(self.stream):
            self._model = built_model(job.spec)
            # Whole batches and evaluation have one size each; compiling every size of last batch would take minutes.
            self._whole = torch.compile(self._model, dynamic=False) if job.compiled else self._model
            self._dtype = dtype_of(self._model)
            self._parameters = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
            self.flat = Flat(self._model)
            self.local = LocalOptimizer(self._spec, self._parameters)
            self._lr = torch.zeros((), dtype=self._dtype, device=job.spec.device)
            self.loss = torch.zeros((), dtype=torch.float64, device=job.spec.device)
            self.negative = torch.zeros((), dtype=torch.float64, device=job.spec.device)
            self.tally = Tally.zeros((self._spec.task.labels, self._spec.task.groups), job.spec.device)
        self._state: State = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._steps: OrderedDict[int, tuple[torch.cuda.CUDAGraph, _Batch]] = OrderedDict()
        self._evaluation: tuple[torch.cuda.CUDAGraph, _Batch] | None = None

    def prepare(self, source: Examples, received: ClientInput, rows: int) -> None:
        """Capture a whole batch's step and the evaluation ahead of time; what they take is then known."""
        with torch.cuda.stream(self.stream):
            self.receive(received, 0.0)
            self._step_graph(source, rows)
            self._evaluation_graph(source)

    def receive(self, received: ClientInput, lr: float) -> None:
        """Take over a client's starting point, into the buffers that captured graphs read."""
        self.flat.load(received.model)
        if not self._state:
            self._state = {name: value.clone() for name, value in received.state.items()}
        for name, value in received.state.items():
            self._state[name].copy_(value)
        self.local.begin(self._state, received.vectors, received.own)
        self._lr.fill_(lr)
        self.clear()

    def clear(self) -> None:
        """Forget what was summed up."""
        torch._foreach_zero_(self._sums())

    def summed_tally(self) -> Tally:
        """A copy of the Tally summed up so far."""
        return Tally(self.tally.confusion.clone(), self.tally.loss.clone())

    def step(self, source: Examples, rows: Tensor) -> None:
        """Train on one batch."""
        graph, batch = self._step_graph(source, len(rows))
        batch.fill(source, rows)
        graph.replay()

    def evaluate(self, source: Examples, rows: Tensor) -> Iterator[None]:
        """Add the Tally of the model as it stands on some rows to the worker's, a part of them at a time."""
        graph, batch = self._evaluation_graph(source)
        for part in torch.split(rows, _EVALUATED_ROWS):
            batch.fill(source, part)
            graph.replay()
            yield

    def _step_graph(self, source: Examples, rows: int) -> tuple[torch.cuda.CUDAGraph, _Batch]:
        if rows not in self._steps:
            if len(self._steps) >= _GRAPHS_KEPT:
                self._steps.popitem(last=False)
            batch = _Batch(source, rows, self._spec.device)
            self._steps[rows] = self._captured(lambda: self._train_on(batch)), batch
        self._steps.move_to_end(rows)
        return self._steps[rows]

    def _evaluation_graph(self, source: Examples) -> tuple[torch.cuda.CUDAGraph, _Batch]:
        if self._evaluation is None:
            batch = _Batch(source, _EVALUATED_ROWS, self._spec.device)
            self._evaluation = self._captured(lambda: self._tally_batch(batch)), batch
        return self._evaluation

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture work as a graph and leave the model and the sums as they were."""
        kept = self.flat.copied()
        buffers = [*self._sums(), *self.local.buffers]
        kept_buffers = [value.clone() for value in buffers]
        for _ in range(_WARM_UPS):
            work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
            work()
        self.flat.load(kept)
        for value, before in zip(buffers, kept_buffers, strict=True):
            value.copy_(before)
        return graph

    def _sums(self) -> list[Tensor]:
        return [self.loss, self.negative, self.tally.confusion, self.tally.loss]

    def _train_on(self, batch: _Batch) -> None:
        spec, examples = self._spec, batch.examples
        self._model.train()
        whole = len(examples) == spec.training.batch_size
        losses, logits = self._forward(self._whole if whole else self._model, examples)
        rows = Rows(examples.y, examples.group, batch.mask, spec.task)
        found, raised = gradients(list(self._parameters.values()), spec.algorithm, rows, losses, logits, self._state)
        self.local.step(found, self._lr)
        self.loss += losses.detach().mean()
        self.negative += raised
        if spec.algorithm.measure in (Measure.EPOCH, Measure.LAST_BATCH):
            if spec.algorithm.measure is Measure.LAST_BATCH:
                torch._foreach_zero_([self.tally.confusion, self.tally.loss])
            self._add(losses, logits, batch)

    @torch.no_grad()
    def _tally_batch(self, batch: _Batch) -> None:
        self._model.eval()
        losses, logits = self._forward(self._whole, batch.examples)
        self._add(losses, logits, batch)

    def _forward(self, model: Callable[[Tensor], Tensor], examples: Examples) -> tuple[Tensor, Tensor]:
        x = inputs(examples.x, self._dtype)
        if self._spec.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with autocast(self._spec):
            return row_losses(model, x, examples.y, self._spec.task.labels)

    def _add(self, losses: Tensor, logits: Tensor, batch: _Batch) -> None:
        shape = (self._spec.task.labels, self._spec.task.groups)
        examples = batch.examples
        seen = Tally.of(logits.argmax(-1), losses, examples.y, examples.group, shape, batch.mask)
        self.tally.confusion.add_(seen.confusion)
        self.tally.loss.add_(seen.loss)
