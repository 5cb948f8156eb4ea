"""Full-batch gradients of many clients at once, for algorithms whose clients upload these instead of training."""

from __future__ import annotations

import torch

from ffalm.algorithms import Batch, ModelVector, Rows, State, Vectors
from ffalm.engines.jobs import ClientSpec
from ffalm.engines.stacked.kernels import Kernel, Weights
from ffalm.engines.stacked.losses import losses_of
from ffalm.engines.stacked.schedule import Steps
from ffalm.engines.stacked.scoring import StackedRows
from ffalm.engines.stacked.training import LaneResults, laid_out, per_lane


def client_gradients(
    kernel: Kernel, spec: ClientSpec, weights: Weights, rows: StackedRows, steps: Steps, state: State
) -> tuple[LaneResults, Vectors]:
    """The objectives' values and gradients of each lane on all its rows, which are its only step.

    One pass forward, and one back for each objective.
    """
    algorithm, by_outputs = spec.algorithm, spec.algorithm.by_outputs(spec.task)
    opened = kernel.opened(weights)
    (step,) = laid_out(kernel, spec, rows, steps, weights.trained[0].dtype)
    rows_of = Rows(step.labels, step.groups, step.mask, spec.task)
    counted = step.mask.unsqueeze(-1) if by_outputs else step.mask
    vectors: Vectors = {}
    with torch.inference_mode():
        logits, passed = kernel.forward(opened, step.batch, training=True)
        losses, _ = losses_of(logits, step.target)
        batch = Batch(rows_of, losses, logits if by_outputs else None)
        values, slopes = algorithm.objective_slopes(batch, state)
        for name, slope in zip(algorithm.gradients, slopes, strict=True):
            own = slope * counted if by_outputs else losses_of(logits, step.target)[1](slope * counted)
            found = kernel.backward(opened, passed, own, again=True)
            vectors[name] = ModelVector(
                [torch.zeros_like(block) if one is None else one
                 for block, one in zip(opened.blocks, found, strict=True)]
            )  # fmt: skip
    loss, never = per_lane(steps, losses, torch.ones_like(losses).amin(1))
    return LaneResults(loss, never, None, values.double().cpu()), vectors
