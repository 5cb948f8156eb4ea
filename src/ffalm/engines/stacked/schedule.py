"""Who trains beside whom, and on which rows at each step.

A lane of the stack is one client of one job in one round (`ClientSlot`). Lanes are sorted by their number of steps,
longest first, so that the lanes still training at a step are the first ones: step k runs on a prefix of the stack, and
nobody waits for a large client by computing on nothing. Only a last, smaller batch is filled up, with
rows that a mask leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_UNEVEN = 4  # a lane whose batches are this many times smaller than its neighbours' starts a chunk of its own


@dataclass(frozen=True)
class ClientSlot:
    """One client of one job in one round."""

    job: int  # its place in the stack
    client: int
    first: int  # number of its first row in the table
    rows: int
    order: NDArray[np.int64]  # row numbers of all its steps, counted from its own first row
    sizes: NDArray[np.int64]  # how many of them each step takes

    @property
    def width(self) -> int:
        """Rows of its largest batch, which is the first."""
        return int(self.sizes[0])


@dataclass(frozen=True)
class Span:
    """One step: which lines of `Steps` are its own. ClientSlot i has the i-th of them."""

    lines: slice
    lanes: int
    whole: bool  # whether all places count


@dataclass(frozen=True)
class DistinctLines:
    """Lines of `Steps` without those that repeat another's rows: jobs of one seed train on the same batches."""

    rows: Tensor  # (line, place)
    sizes: Tensor  # (line)
    places: Tensor | None  # for each line of the steps its place among these; None: all are distinct

    def mask(self) -> Tensor:
        """(line, place) whether a place counts."""
        return _mask(self.rows, self.sizes)

    def repeated(self, values: Tensor) -> Tensor:
        """What was made of the distinct lines, for every line of the steps."""
        return values if self.places is None else values.index_select(0, self.places)


@dataclass(frozen=True)
class Steps:
    """All batches of some lanes, one line per (step, lane): those of the first step, then those of the second, ..."""

    rows: Tensor  # (line, place) row numbers in the table
    sizes: Tensor  # (line) how many of the places count
    lanes: Tensor  # (line) the lane
    spans: list[Span]  # one a step
    first: int = 0  # number of the first line, where these are steps out of a longer list
    alike: Tensor | None = None  # (lane) the first lane with the same batches; None: all differ

    def windows(self, lines: int) -> Iterator[Steps]:
        """The same steps a few at a time, about this many lines each."""
        start = 0
        while start < len(self.spans):
            offset, stop = self.spans[start].lines.start, start + 1
            while stop < len(self.spans) and self.spans[stop].lines.stop - offset <= lines:
                stop += 1
            own = self.spans[start:stop]
            cut = slice(offset, own[-1].lines.stop)
            moved = [
                Span(slice(span.lines.start - offset, span.lines.stop - offset), span.lanes, span.whole) for span in own
            ]
            yield Steps(self.rows[cut], self.sizes[cut], self.lanes[cut], moved, offset, self.alike)
            start = stop

    def cut(self, lines: Tensor) -> Sequence[Tensor]:
        """Views of each step's own out of something that has one entry per line."""
        return torch.split_with_sizes(lines, [span.lanes for span in self.spans])

    def run(self) -> slice | None:
        """Where the rows lie, if they are one line that follow each other in the table."""
        if len(self.rows) != 1:
            return None
        first, line = int(self.rows[0, 0]), self.rows[0]
        follow = torch.arange(first, first + len(line), dtype=line.dtype, device=line.device)
        return slice(first, first + len(line)) if torch.equal(line, follow) else None

    def mask(self) -> Tensor:
        """(line, place) whether a place counts."""
        return _mask(self.rows, self.sizes)

    @cached_property
    def distinct(self) -> DistinctLines:
        """Each line once."""
        if self.alike is None:
            return DistinctLines(self.rows, self.sizes, None)
        first = self.alike[self.lanes]
        own = first == self.lanes
        lines = own.nonzero().flatten()
        step = torch.arange(len(first), device=first.device) - self.lanes  # number of the step's first line
        return DistinctLines(self.rows[lines], self.sizes[lines], (own.cumsum(0) - 1)[step + first])


def _mask(rows: Tensor, sizes: Tensor) -> Tensor:
    return torch.arange(rows.shape[1], device=rows.device) < sizes.unsqueeze(1)


def ordered(lanes: Sequence[ClientSlot]) -> list[ClientSlot]:
    """Lanes with the most steps first, among equals the largest."""
    return sorted(lanes, key=lambda lane: (-len(lane.sizes), -lane.width, -lane.rows))


def chunks(lanes: Sequence[ClientSlot], lane_bytes: int, row_bytes: int, budget: int) -> list[list[ClientSlot]]:
    """Cut ordered lanes into stacks that are worked on one after the other, each within a budget of memory."""
    cut: list[list[ClientSlot]] = []
    widest = 0
    for lane in lanes:
        width = max(widest, lane.width)
        fits = cut and (len(cut[-1]) + 1) * (lane_bytes + width * row_bytes) <= budget
        if fits and lane.width * _UNEVEN >= width:
            cut[-1].append(lane)
            widest = width
        else:
            cut.append([lane])
            widest = lane.width
    return cut


def training_steps(lanes: Sequence[ClientSlot], device: torch.device) -> Steps:
    """The lanes' own batches."""
    steps = _laid_out([lane.order + lane.first for lane in lanes], [lane.sizes for lane in lanes], device)
    known: dict[tuple[int, int], int] = {}
    alike = [known.setdefault((lane.first, id(lane.order)), number) for number, lane in enumerate(lanes)]
    return steps if len(known) == len(lanes) else replace(steps, alike=torch.tensor(alike, device=device))


def scoring_steps(spans: Sequence[tuple[int, int]], most: int, device: torch.device) -> Iterator[tuple[int, Steps]]:
    """All rows of each lane in their order, about `most` at a time; lanes are (first row, rows), largest first.

    Each step comes with the number of its first lane. A large lane has steps of its own, small ones of about the same
    size share a step.
    """
    lane = 0
    while lane < len(spans):
        first, count = spans[lane]
        beside = lane + 1
        while beside < len(spans) and (beside + 1 - lane) * count <= most and spans[beside][1] * _UNEVEN >= count:
            beside += 1
        own = spans[lane:beside]
        for start in range(0, count, most):
            taken = [(first + start, min(most, count - start))] if len(own) == 1 else own
            rows, sizes = [np.arange(a, a + n) for a, n in taken], [np.array([n]) for _, n in taken]
            yield lane, _laid_out(rows, sizes, device)
        lane = beside


def _laid_out(rows: list[NDArray[np.int64]], sizes: list[NDArray[np.int64]], device: torch.device) -> Steps:
    """Lines of equal width, ordered by step and then lane; places that do not count repeat a lane's first row."""
    lengths = np.array([len(own) for own in sizes])
    active = (lengths[:, None] > np.arange(lengths.max(initial=0))).sum(0)
    starts = np.cumsum(active) - active
    width = max(int(own.max()) for own in sizes)
    lines, counts = np.empty((active.sum(), width), dtype=np.int32), np.empty(active.sum(), dtype=np.int64)
    for lane, (own, own_sizes) in enumerate(zip(rows, sizes, strict=True)):
        at = starts[: len(own_sizes)] + lane
        counts[at] = own_sizes
        if (own_sizes == width).all():
            lines[at] = own.reshape(-1, width)
        else:
            padded = np.full((len(own_sizes), width), own[0], dtype=np.int32)
            padded[np.arange(width) < own_sizes[:, None]] = own
            lines[at] = padded
    full = np.logical_and.reduceat(counts == width, starts)
    return Steps(
        torch.from_numpy(lines).to(device),
        torch.from_numpy(counts).to(device),
        torch.from_numpy(np.arange(len(lines)) - starts.repeat(active)).to(device),
        [
            Span(slice(first, first + count), count, whole)
            for first, count, whole in zip(starts.tolist(), active.tolist(), full.tolist(), strict=True)
        ],
    )
