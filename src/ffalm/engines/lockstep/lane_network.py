"""Many copies of a network run as one, on the same rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ffalm.engines.common import SINGLE_ROW
from ffalm.engines.lockstep.lane_functions import Convolve, Linear, Normalise, Pool, applied
from ffalm.engines.lockstep.lane_weights import LaneParameter, LaneWeights
from ffalm.engines.lockstep.layer_graph import LayerGraph, Step
from ffalm.engines.lockstep.layers import Layers
from ffalm.errors import UserError


class LaneNetwork:
    """The network that a graph describes, computed for several lanes at once."""

    def __init__(self, graph: LayerGraph, layers: Layers) -> None:
        self._graph, self.layers = graph, layers

    def logits(self, weights: LaneWeights, x: Tensor, training: bool) -> Tensor:
        """(lane, row, label): what every lane's model makes of the same rows."""
        run = _Pass(self.layers, weights, x, training)
        values = {self._graph.entry: x}
        for step in self._graph.steps:
            values[step.result] = run.made(step, [values[name] for name in step.sources])
            for name in step.unneeded:
                del values[name]
        made = values[self._graph.exit]
        return made.view(len(weights), len(x), *made.shape[1:])


class _Pass:
    """A forward pass. Results are rows of all lanes, one lane after the other, or of one where all lanes share them."""

    def __init__(self, layers: Layers, weights: LaneWeights, x: Tensor, training: bool) -> None:
        self._layers, self._training = layers, training
        self._parameters, self._buffers = weights.entries()
        self._lanes, self._rows = len(weights), len(x)
        self._anchor = torch.zeros((), device=x.device, requires_grad=torch.is_grad_enabled())

    def made(self, step: Step, given: list[Tensor]) -> Tensor:
        """The result of a step."""
        if step.convolution is not None:
            weight, bias = self._weights(step)
            return _joined(
                applied(Convolve, self._apart(given[0]), self._anchor, self._layers, weight, bias, step.convolution)
            )
        if step.normalisation is not None:
            return self._normalised(step, given)
        if step.pooling is not None:
            return _joined(applied(Pool, self._apart(given[0]), self._layers, step.pooling))
        if step.function is not None:
            return step.function(*(given if len(given) == 1 else map(self._everyone, given)))
        rows = given[0].view(-1, self._rows, given[0].shape[-1])
        return applied(Linear, rows.expand(self._lanes, -1, -1), self._anchor, *self._weights(step)).flatten(0, 1)

    def _normalised(self, step: Step, given: list[Tensor]) -> Tensor:
        x, *others = (self._apart(self._everyone(value)) for value in given)
        if self._training and x[0, ..., 0].numel() == 1:
            raise UserError(SINGLE_ROW)
        running = tuple(self._buffers[f"{step.layer}.running_{name}"] for name in ("mean", "var"))
        other = others[0] if others else None
        scale, shift = self._weights(step)
        how = step.normalisation
        return _joined(
            applied(Normalise, x, other, self._anchor, self._layers, scale, shift, running, how, self._training)
        )

    def _weights(self, step: Step) -> tuple[LaneParameter, LaneParameter | None]:
        return self._parameters[f"{step.layer}.weight"], self._parameters.get(f"{step.layer}.bias")

    def _apart(self, value: Tensor) -> Tensor:
        """(lane, row, height, width, channel); what all lanes share has one lane."""
        last = value.permute(0, 2, 3, 1).contiguous()
        return last.view(-1, self._rows, *last.shape[1:])

    def _everyone(self, value: Tensor) -> Tensor:
        """With rows for every lane, also of what all lanes share."""
        shared = len(value) < self._lanes * self._rows
        return value.repeat(self._lanes, *[1] * (value.ndim - 1)) if shared else value


def _joined(value: Tensor) -> Tensor:
    """(lane and row, channel, height, width), without moving a number."""
    return value.flatten(0, 1).permute(0, 3, 1, 2)
