"""The scoring of many models at once, each on its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ffalm.engines.stacked.kernels import Kernel, Table, Weights, gathered
from ffalm.engines.stacked.losses import Cells, losses_of, predictions, targets
from ffalm.engines.stacked.schedule import Steps, scoring_steps
from ffalm.fairness import Tally

_WINDOW = 512  # lines that are laid out at a time


@dataclass(frozen=True)
class Rows:
    """Every row of every client and validation part, resident on the device."""

    table: Table
    y: Tensor
    group: Tensor
    shape: tuple[int, int]  # labels, groups


@dataclass(frozen=True)
class Plan:
    """How some copies are scored on some rows: all that stays the same from round to round."""

    order: Tensor  # copies with the most rows first
    windows: list[tuple[Steps, Any, Tensor]]  # steps, the kernel's batches, targets
    lines: tuple[int, int]
    cells: Cells


def scoring_plan(kernel: Kernel, rows: Rows, spans: Sequence[tuple[int, int]], width: int, dtype: torch.dtype) -> Plan:
    """Plan the scoring of copies, given the rows of each as (first row, number of rows)."""
    device = rows.y.device
    order = sorted(range(len(spans)), key=lambda copy: -spans[copy][1])
    steps = scoring_steps([spans[copy] for copy in order], min(width, max(count for _, count in spans)), device)
    windows = [
        (window, kernel.batches(rows.table, window, training=False),
         targets(gathered(rows.y, window.rows), rows.shape[0], dtype))
        for window in steps.windows(_WINDOW)
    ]  # fmt: skip
    y, group = gathered(rows.y, steps.rows), gathered(rows.group, steps.rows)
    cells = Cells(steps.lanes, y, group, steps.mask(), len(order), rows.shape)
    return Plan(torch.tensor(order), windows, (len(y), y.shape[1]), cells)


@torch.inference_mode()
def score(kernel: Kernel, weights: Weights, plan: Plan) -> Tally:
    """The Tally of each copy on its rows, on the CPU."""
    device, dtype = weights.trained[0].device, weights.trained[0].dtype
    placed = weights.select(plan.order.to(device))
    losses = torch.empty(plan.lines, dtype=dtype, device=device)
    predicted = torch.empty(plan.lines, dtype=torch.long, device=device)
    for window, batches, target in plan.windows:
        for span in window.spans:
            logits, _ = kernel.forward(placed.first(span.lanes), batches, span, training=False)
            at = slice(window.first + span.lines.start, window.first + span.lines.stop)
            losses[at], _ = losses_of(logits, target[span.lines])
            predicted[at] = predictions(logits)
    return plan.cells.tally(predicted, losses)[plan.order.argsort()]
