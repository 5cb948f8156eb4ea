"""The graphed engine: a training step captured once as a CUDA graph and replayed for every batch of every client.

A small convolutional network on a large GPU spends its time launching kernels; a replayed graph launches them all at
once. All rows of a federation lie on the GPU as they came (images as bytes), and batches are gathered there. BatchNorm
sees exact batches: a last partial batch has a graph of its own size instead of padding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure, State
from ffalm.data.types import Examples
from ffalm.engines.base import Job, Round, Snapshot
from ffalm.engines.common import autocast, broadcast, built_model, descend, dtype_of, inputs, row_losses
from ffalm.engines.flat import Flat
from ffalm.engines.rounds import Reply, Terms, rounds
from ffalm.engines.sampling import batches
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.randomness import Purpose, torch_seeded

_WARM_UPS = 3  # runs before a capture, in which libraries choose algorithms and allocate what they keep
_GRAPHS_KEPT = 24  # batch sizes held per program; unequal clients have many last batches
_EVALUATED_ROWS = 1024


class GraphedEngine:
    """Clients one after the other, each step one launch. Programs are kept for later jobs of the same kind."""

    name: ClassVar[str] = "graphed"
    together: ClassVar[bool] = False

    def __init__(self) -> None:
        self._programs: dict[Any, _Program] = {}

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """One job after the other."""
        for number, job in enumerate(jobs):
            if job.device.type != "cuda":
                raise UserError("The engine 'graphed' needs a GPU: use device cuda, or another engine.")
            for round in rounds(Terms.of(job), _GraphedClients(job, self._program(job))):
                yield number, round

    def _program(self, job: Job) -> _Program:
        task = job.federation.task
        like = job.federation.clients[0]
        features = (tuple(like.x.shape[1:]), like.x.dtype)
        numerics = (job.precision, job.channels_last, job.compiled, job.device)
        sizes = (job.training.clip, job.training.batch_size)
        key = (job.model, job.algorithm, sizes, task.labels, task.groups, features, numerics)
        if key not in self._programs:
            self._programs = {key: _Program(job)}  # one at a time: captured graphs hold their memory
        return self._programs[key]


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


class _Program:
    """A model's captured training steps and evaluation, with the tensors that they read and write."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._task = job.federation.task
        self.model = built_model(job)
        # Whole batches and evaluation have one size each; compiling every size of last batch would take minutes.
        self._whole = torch.compile(self.model, dynamic=False) if job.compiled else self.model
        self._dtype = dtype_of(self.model)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.flat = Flat(self.model)
        self.lr = torch.zeros((), dtype=self._dtype, device=job.device)
        self.loss = torch.zeros((), dtype=torch.float64, device=job.device)
        self.negative = torch.zeros((), dtype=torch.float64, device=job.device)
        self.tally = Tally.zeros((self._task.labels, self._task.groups), job.device)
        self._state: State = {}
        self._steps: OrderedDict[int, tuple[torch.cuda.CUDAGraph, _Batch]] = OrderedDict()
        self._evaluation: tuple[torch.cuda.CUDAGraph, _Batch] | None = None

    def receive(self, model: dict[str, Tensor], state: State, lr: float) -> None:
        """Take over a client's starting point."""
        self.flat.load(model)
        sent = broadcast(self._job.algorithm, state, self._dtype, self._job.device)
        if not self._state:
            self._state = {name: value.clone() for name, value in sent.items()}
        for name, value in sent.items():
            self._state[name].copy_(value)
        self.lr.fill_(lr)
        self.clear()

    def clear(self) -> None:
        """Forget what was summed up."""
        torch._foreach_zero_([self.loss, self.negative, self.tally.confusion, self.tally.loss])

    def step(self, source: Examples, rows: Tensor) -> None:
        """Train on one batch."""
        graph, batch = self._step_graph(source, len(rows))
        batch.fill(source, rows)
        graph.replay()

    def evaluate(self, source: Examples, rows: Tensor) -> Tally:
        """The Tally of the model as it stands on some rows."""
        if self._evaluation is None:
            batch = _Batch(source, _EVALUATED_ROWS, self._job.device)
            self._evaluation = self._captured(lambda: self._tally_batch(batch)), batch
        graph, batch = self._evaluation
        self.clear()
        for part in torch.split(rows, _EVALUATED_ROWS):
            batch.fill(source, part)
            graph.replay()
        return self.tally.to("cpu")

    def _step_graph(self, source: Examples, rows: int) -> tuple[torch.cuda.CUDAGraph, _Batch]:
        if rows not in self._steps:
            if len(self._steps) >= _GRAPHS_KEPT:
                self._steps.popitem(last=False)
            batch = _Batch(source, rows, self._job.device)
            self._steps[rows] = self._captured(lambda: self._train_on(batch)), batch
        self._steps.move_to_end(rows)
        return self._steps[rows]

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture work as a graph and leave the model and the sums as they were."""
        kept = self.flat.copied()
        sums = [self.loss, self.negative, self.tally.confusion, self.tally.loss]
        kept_sums = [value.clone() for value in sums]
        side = torch.cuda.Stream(self._job.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        self.flat.load(kept)
        for value, before in zip(sums, kept_sums, strict=True):
            value.copy_(before)
        return graph

    def _train_on(self, batch: _Batch) -> None:
        job, examples = self._job, batch.examples
        self.model.train()
        whole = len(examples) == job.training.batch_size
        losses, logits = self._forward(self._whole if whole else self.model, examples)
        weights = job.algorithm.row_weights(losses.detach(), examples.group, examples.y, batch.mask, self._state)
        descend(self._parameters, losses, weights, self.lr, job.training.clip)
        self.loss += losses.detach().mean()
        self.negative += (weights < 0).any()
        if job.algorithm.measure in (Measure.EPOCH, Measure.LAST_BATCH):
            if job.algorithm.measure is Measure.LAST_BATCH:
                torch._foreach_zero_([self.tally.confusion, self.tally.loss])
            self._add(losses, logits, batch)

    @torch.no_grad()
    def _tally_batch(self, batch: _Batch) -> None:
        self.model.eval()
        losses, logits = self._forward(self._whole, batch.examples)
        self._add(losses, logits, batch)

    def _forward(self, model: Callable[[Tensor], Tensor], examples: Examples) -> tuple[Tensor, Tensor]:
        x = inputs(examples.x, self._dtype)
        if self._job.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with autocast(self._job):
            return row_losses(model, x, examples.y, self._task.labels)

    def _add(self, losses: Tensor, logits: Tensor, batch: _Batch) -> None:
        shape = (self._task.labels, self._task.groups)
        examples = batch.examples
        seen = Tally.of(logits.argmax(-1), losses, examples.y, examples.group, shape, batch.mask)
        self.tally.confusion.add_(seen.confusion)
        self.tally.loss.add_(seen.loss)


class _GraphedClients:
    """The clients of one job, all their rows in one array on the GPU."""

    def __init__(self, job: Job, program: _Program) -> None:
        self._job, self._program = job, program
        federation = job.federation
        parts = [*federation.clients, *([] if federation.validation is None else [federation.validation])]
        self._rows = _joined(parts, job.device)
        ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).tolist()
        self._ranges = list(pairwise(ends))

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        return {name: value.detach().clone() for name, value in built_model(self._job).state_dict().items()}

    def merge(self, replies: Sequence[Reply], weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of the replies' models."""
        return self._program.flat.average([reply.model for reply in replies], weights)

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The validation part's Tally of a model."""
        if self._job.federation.validation is None:
            return None
        self._program.flat.load(model)
        return self._evaluate(len(self._ranges) - 1)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, Reply]:
        """One client after the other."""
        return {client: self._train(client, sent) for client in chosen}

    def _train(self, client: int, sent: Snapshot) -> Reply:
        """Local SGD from the received model by replaying the step, and the Tally that the algorithm asks for."""
        job, program, round = self._job, self._program, sent.round + 1
        wanted = job.algorithm.measure
        first, end = self._ranges[client]
        program.receive(sent.model, sent.state, job.training.lr_at(round))
        tally = self._evaluate(client) if wanted is Measure.RECEIVED else None
        program.clear()
        steps = batches(job.seed, round, client, end - first, job.training)
        rows = torch.cat(steps).to(job.device) + first
        with torch_seeded(job.seed, Purpose.LAYERS, round, client):
            for part in torch.split(rows, [len(step) for step in steps]):
                program.step(self._rows, part)
        loss, negative = float(program.loss) / len(steps), float(program.negative) / len(steps)
        if tally is None:
            tally = self._evaluate(client) if wanted is Measure.TRAINED else program.tally.to("cpu")
        return Reply(program.flat.copied(), tally, loss, negative)

    def _evaluate(self, part: int) -> Tally:
        return self._program.evaluate(self._rows, torch.arange(*self._ranges[part], device=self._job.device))


def _joined(parts: Sequence[Examples], device: torch.device) -> Examples:
    """Several parts' rows in one place."""
    return Examples(
        torch.cat([part.x for part in parts]).to(device),
        torch.cat([part.y for part in parts]).to(device),
        torch.cat([part.group for part in parts]).to(device),
    )


def why_not_graphed(model: nn.Module, device: torch.device) -> str | None:
    """Why a model cannot be captured, None where nothing speaks against it."""
    if device.type != "cuda":
        return "there is no GPU"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules()):
        return "dropout draws its own numbers for each client"
    return None
