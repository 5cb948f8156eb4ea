"""The scoring of many models at once, each on its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffalm.engines.stacked.kernels import Kernel, Table, Weights, gathered
from ffalm.engines.stacked.losses import Cells, losses_of, predictions, targets
from ffalm.engines.stacked.schedule import Steps, scoring_steps
from ffalm.fairness import Tally


@dataclass(frozen=True)
class StackedRows:
    """Every row of every client and validation part, resident on the device; one that many hold lies there once."""

    table: Table
    y: Tensor
    group: Tensor
    shape: tuple[int, int]  # labels, groups
    lookup: Tensor | None = None  # the table's row for each number that steps give rows; None: the same

    def found(self, steps: Steps) -> Steps:
        """Steps by the table's own row numbers."""
        return steps if self.lookup is None else replace(steps, rows=gathered(self.lookup, steps.rows))


class Piece(NamedTuple):
    """Some rows of some copies that are next to each other, scored in one go."""

    copies: slice
    batch: Any  # the kernel's
    target: Tensor


@dataclass(frozen=True)
class Plan:
    """How some copies are scored on some rows: all that stays the same from round to round."""

    order: Tensor  # copies with the most rows first
    pieces: list[Piece]
    cells: Cells


def scoring_plan(
    kernel: Kernel, rows: StackedRows, spans: Sequence[tuple[int, int]], most: int, dtype: torch.dtype
) -> Plan:
    """Plan the scoring of copies, given the rows of each as (first row, number of rows), `most` rows at a time."""
    device = rows.y.device
    order = sorted(range(len(spans)), key=lambda copy: -spans[copy][1])
    planned = scoring_steps([spans[copy] for copy in order], most, device)
    found = [(first, rows.found(steps)) for first, steps in planned]
    pieces = [
        Piece(
            slice(first, first + len(steps.rows)),
            kernel.batches(rows.table, steps, training=False)[0],
            targets(gathered(rows.y, steps.rows), rows.shape[0], dtype, kernel.scale),
        )
        for first, steps in found
    ]
    lane = torch.cat([(first + steps.lanes).repeat_interleave(steps.rows.shape[1]) for first, steps in found])
    at, mask = (
        torch.cat(part)
        for part in zip(*((steps.rows.flatten(), steps.mask().flatten()) for _, steps in found), strict=True)
    )
    cells = Cells(lane, gathered(rows.y, at), gathered(rows.group, at), mask, len(order), rows.shape)
    return Plan(torch.tensor(order), pieces, cells)


@torch.inference_mode()
def score(kernel: Kernel, weights: Weights, plan: Plan) -> Tally:
    """The Tally of each copy on its rows, on the CPU."""
    device, dtype = weights.trained[0].device, weights.trained[0].dtype
    placed = kernel.opened(weights.select(plan.order.to(device)))
    sizes = [piece.target.shape[:2].numel() for piece in plan.pieces]
    losses = torch.empty(sum(sizes), dtype=dtype, device=device)
    predicted = torch.empty(sum(sizes), dtype=torch.int32, device=device)
    for piece, own_losses, own_predicted in zip(
        plan.pieces, *(torch.split_with_sizes(part, sizes) for part in (losses, predicted)), strict=True
    ):
        logits, _ = kernel.forward(placed[piece.copies], piece.batch, training=False)
        shape = logits.shape[:2]
        losses_of(logits, piece.target, out=own_losses.view(shape))
        own_predicted.view(shape).copy_(predictions(logits))
    return plan.cells.tally(predicted, losses)[plan.order.argsort()]
