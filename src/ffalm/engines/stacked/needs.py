"""How much memory a stack of jobs will take, and how jobs are cut into stacks that fit.

The figures are worst cases over kernels, and tests compare them with measured peaks. They matter only where memory is
short: with enough of it every run is laid out the same way, so that its results are the same bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ffalm.algorithms import Measure
from ffalm.data.compact_features import CompactFeatures
from ffalm.engines.common import dtype_of
from ffalm.engines.jobs import ClientSpec, Job
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.prepared_jobs import PreparedJob
from ffalm.engines.sampling import round_half_up
from ffalm.engines.stacked.binary_columns import binary_columns
from ffalm.engines.stacked.choose import values_per_row
from ffalm.engines.stacked.network import read_network
from ffalm.engines.stacked.training import WINDOW
from ffalm.run_settings import Training
from ffalm.system.memory import free

T = TypeVar("T")

LEAST_SCORED = 256  # rows that are scored at a time however little memory there is: fewer save none
_WORKED_ON = 3  # copies of a model or of a row's values while a lane trains: themselves, gradients, and between the two
_MAPPED = 2  # times as many where torch.func maps a module
_STEPPED = 3  # copies of a model between gradient and step: the one that was sent, drift and direction
_MOMENT = 3  # copies of a model for each moment of an optimizer: itself, and what its next value is made of
_KEPT_MODELS = 6  # of each job: the module, where it started, the packed and the saved one, and the last round's two
_AVERAGED = 4  # more, as float64 and not, while a job's models are averaged
_LABELLED = 16  # bytes for each row's label and group
_BATCHED = 48  # bytes for each row that a lane trains on: row numbers, losses, predictions
_SCORED = 48  # bytes for each row that is scored: where it counts, its target, its loss
_PREPARED = 64  # bytes for each row of a window of steps: labels, groups, masks, the algorithm's own
_CODED = 5  # bytes for each listed column of a row that is scored
_REVERSED = 25  # bytes for each listed column of a row in a window of steps
_LIBRARIES = 2**24  # what libraries take for themselves on the way
_HOLES = 1 / 8  # more of what stands, since memory fragments
_SEEN = 512  # rows from which it is judged whether columns will be listed
_SPARED = 0.2  # of what is free, for what no estimate knows


@dataclass(frozen=True)
class Needs:
    """Bytes that a stack takes on its device."""

    standing: int  # rows, models, and what a round of all its jobs holds
    least: int  # working memory of the largest lane alone, which no cut makes smaller

    @property
    def total(self) -> int:
        """The least with which these jobs can be computed together."""
        return self.standing + self.least


@dataclass(frozen=True)
class Cut:
    """Jobs in stacks that are computed one after the other, and the working memory that each may use."""

    stacks: list[list[PreparedJob]]
    budget: int


def cut(jobs: Sequence[PreparedJob], usual: int) -> Cut:
    """As few stacks as the free memory allows; where that is unknown, one."""
    first, model = jobs[0].job, jobs[0].model
    left = free(first.spec.device, first.processes)
    if left is None:
        return Cut([list(jobs)], usual)
    parts = stacks_in(left, [one.job for one in jobs], model)
    stacks = _dealt(jobs, parts)
    standing = max(needs_of([one.job for one in stack], model).standing for stack in stacks)
    return Cut(stacks, max(1, min(usual, room_in(left) - standing)))


def stacks_in(left: int, jobs: Sequence[Job], model: nn.Module) -> int:
    """Into how many stacks jobs are cut so that each fits in the memory that is left; at most one a job."""
    parts = 1
    while parts < len(jobs) and any(needs_of(own, model).total > room_in(left) for own in _dealt(jobs, parts)):
        parts = min(2 * parts, len(jobs))
    return parts


def _dealt(jobs: Sequence[T], parts: int) -> list[list[T]]:
    """Jobs in parts of about one size."""
    return [list(jobs[place::parts]) for place in range(parts)]


def room_in(left: int) -> int:
    """How much of the free memory is planned with."""
    return int(left * (1 - _SPARED))


def needs_of(jobs: Sequence[Job], model: nn.Module) -> Needs:
    """What jobs with a model like this one take together."""
    look = jobs[0].federation.first_rows(_SEEN).x
    weights = dtype_of(model).itemsize * sum(entry.numel() for entry in model.state_dict().values())
    width = max(_width(job.spec.training, max(map(len, job.federation.row_views))) for job in jobs)
    rounds = [_round(job) for job in jobs]
    lanes, batched = (sum(figures) for figures in zip(*rounds, strict=True))
    listed, plain = _listed(look, jobs[0].spec.device)
    standing = [
        _LIBRARIES,
        _rows(jobs, look, dtype_of(model).itemsize, listed > 0),
        (_kept_models(jobs[0]) * len(jobs) + (1 + _kept_by_lanes(jobs[0].spec)) * lanes + _AVERAGED) * weights,
        batched * _BATCHED,
        min(max(WINDOW, lanes) * width, batched) * (_PREPARED + _REVERSED * listed),
        sum(map(_scored, jobs)) * (_SCORED + _CODED * listed + dtype_of(model).itemsize * plain),
    ]
    lane, row = working_bytes(model, look, jobs[0].spec)
    freed = lane if _vectors(jobs[0].spec) else 0  # vectors of a step, freed where the next does not find room
    return Needs(int((1 + _HOLES) * sum(standing)), lane + freed + max(width, LEAST_SCORED) * row)


def working_bytes(model: nn.Module, x: Tensor, spec: ClientSpec) -> tuple[int, int]:
    """Bytes that are worked on at a time for each lane, and for each row of its batch."""
    item = dtype_of(model).itemsize
    copies = _WORKED_ON * (_MAPPED if read_network(model, x.shape[1:]) is None else 1) * item
    weights = sum(entry.numel() for entry in model.parameters())
    return (copies + _vectors(spec) * item) * weights, copies * values_per_row(model, x)


def _kept_models(job: Job) -> int:
    """Model-sized copies of each job: its models, the server's vectors, and those that its clients keep."""
    algorithm = job.spec.algorithm
    kept_by_clients = len(algorithm.client_vectors) * len(job.federation.row_views)
    return _KEPT_MODELS + 2 * (len(algorithm.server_vectors) + kept_by_clients)


def _kept_by_lanes(spec: ClientSpec) -> int:
    """Model-sized copies that a round holds for each lane beyond its weights."""
    return 2 * (len(spec.algorithm.client_vectors) + len(spec.algorithm.uploads))


def _vectors(spec: ClientSpec) -> int:
    """Model-sized copies that a lane holds beyond plain SGD: what it was sent, keeps, uploads, and moments."""
    algorithm, optimizer = spec.algorithm, local_optimizer(spec.training)
    if optimizer.plain and algorithm.only_averages:
        return 0
    sent = sum(name in algorithm.server_vectors for name in algorithm.broadcasts)
    return _STEPPED + _MOMENT * optimizer.moments + sent + 2 * len(algorithm.client_vectors) + len(algorithm.uploads)


def _rows(jobs: Sequence[Job], look: Tensor, item: int, listed: bool) -> int:
    """The table, each source once: as if it were dense, unless it is not even so before it is laid out."""
    kept = 1 if look.dtype == torch.uint8 else item
    dense = (look[0].numel() + 1) * kept
    sources = {id(x): len(x) * _row_bytes(x, item, dense, listed) for job in jobs for x in _features(job)}
    return sum(sources.values())


def _row_bytes(x: Tensor, item: int, dense: int, listed: bool) -> int:
    """Of a row that is laid out, with its label and group: its codes, and the columns that are multiplied."""
    if not listed or not isinstance(x, CompactFeatures):
        return dense + _LABELLED
    codes = x.codes.shape[1]
    return min(dense, codes * x.codes.itemsize + (x.numbers.shape[1] + codes + 1) * item) + _LABELLED


def _listed(look: Tensor, device: torch.device) -> tuple[int, int]:
    """How many columns a row lists and how many it keeps beside them, judged by the first rows; else 0 and 0."""
    if device.type != "cpu" or not look.dtype.is_floating_point:
        return 0, 0
    columns = binary_columns([look])
    return (columns.ones, len(columns.plain) + 1) if columns.worth_it else (0, 0)


def _round(job: Job) -> tuple[int, int]:
    """How many lanes a job has in a round, and on how many rows they train, at most."""
    sizes = sorted(map(len, job.federation.row_views), reverse=True)
    lanes = min(len(sizes), max(1, round_half_up(job.spec.training.participation * len(sizes))))
    return lanes, sum(_trained_on(job.spec.training, size) for size in sizes[:lanes])


def _trained_on(training: Training, rows: int) -> int:
    """Rows of all local steps of a client."""
    if training.local_steps is None:
        return training.local_epochs * rows
    return training.local_steps * _width(training, rows)


def _width(training: Training, rows: int) -> int:
    """Rows of a client's largest batch."""
    return min(training.batch_size or rows, rows)


def _scored(job: Job) -> int:
    """Rows that are scored in a round, or of which plans for scoring are kept."""
    validation = 0 if job.federation.validation is None else len(job.federation.validation)
    clients = job.spec.algorithm.measure in (Measure.RECEIVED, Measure.TRAINED)
    return validation + (sum(map(len, job.federation.row_views)) if clients else 0)


def _features(job: Job) -> list[Tensor]:
    validation = [] if job.federation.validation is None else [job.federation.validation.x]
    return [*(view.source.x for view in job.federation.row_views), *validation]
