"""Local optimisation of one client's parameters, as `loop` and `graphed` do it: clip, drift, optimiser, finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ffalm.algorithms import ModelVector, Sent, State, Vectors
from ffalm.engines.contract_checks import check_drift, check_finish
from ffalm.engines.jobs import ClientSpec, Model
from ffalm.engines.optimizers import local_optimizer


class LocalOptimizer:
    """Applies gradients to parameters in place.

    What a client received is copied into buffers that stay where they are, so that a captured CUDA graph can read
    them. Plain SGD without drift needs none of that and is a function of its own.
    """

    def __init__(self, spec: ClientSpec, parameters: Mapping[str, Tensor]) -> None:
        self._algorithm, self._clip = spec.algorithm, spec.training.clip
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._optimizer = local_optimizer(spec.training)
        self._plain = self._optimizer.plain and not spec.algorithm.overrides("drift")
        self._uses_vectors = not self._plain or bool(spec.algorithm.client_vectors or spec.algorithm.uploads)
        self._sent: Sent | None = None
        self._own: Vectors = {}
        self._moments: list[ModelVector] = []
        self._step = torch.zeros((), dtype=torch.float64, device=spec.device)

    @property
    def buffers(self) -> list[Tensor]:
        """What a step changes besides the parameters."""
        return [self._step, *(value for moment in self._moments for value in moment.tensors)]

    def begin(self, state: State, vectors: dict[str, Model], own: dict[str, Model]) -> None:
        """Start a client's round at the parameters' present values."""
        if not self._uses_vectors:
            return
        given = [self._vector(entries) for entries in (*vectors.values(), *own.values())]
        with torch.no_grad():
            here = ModelVector([parameter.detach() for parameter in self._parameters])
            if self._sent is None:
                self._sent = Sent(state, here.zeros(), {name: here.zeros() for name in vectors})
                self._own = {name: here.zeros() for name in own}
                self._moments = [here.zeros() for _ in range(self._optimizer.moments)]
            self._sent = Sent(state, self._sent.model, self._sent.vectors)
            self._sent.model.copy_(here)
            for kept, received in zip((*self._sent.vectors.values(), *self._own.values()), given, strict=True):
                kept.copy_(received)
            for moment in self._moments:
                moment.copy_(moment.zeros())
            self._step.zero_()

    def step(self, gradients: Sequence[Tensor | None], lr: float | Tensor) -> None:
        """One step along the gradients of the parameters, None for one that has no effect."""
        used = [(parameter, found) for parameter, found in zip(self._parameters, gradients, strict=True)
                if found is not None]  # fmt: skip
        scale = clip_factor([found for _, found in used], self._clip)
        if self._plain:
            sgd_step([parameter for parameter, _ in used], [found for _, found in used], lr, scale)
            return
        assert self._sent is not None
        with torch.no_grad():
            weights = ModelVector([parameter.detach() for parameter in self._parameters])
            gradient = ModelVector([
                torch.zeros_like(parameter) if found is None else found
                for parameter, found in zip(weights.tensors, gradients, strict=True)
            ])  # fmt: skip
            gradient = gradient if scale is None else gradient * scale
            drift = check_drift(self._algorithm, self._algorithm.drift(weights, self._sent, self._own))
            self._step += 1
            gradient = gradient if drift is None else gradient + drift
            direction = self._optimizer.direction(gradient, weights, self._moments, self._step)
            weights.add_(-(direction * lr))

    def finish(self, steps: int, lr: float) -> tuple[dict[str, Model], dict[str, Model]]:
        """What the client keeps and what it uploads, by name and then by parameter."""
        if not self._uses_vectors:
            return {}, {}
        assert self._sent is not None
        weights = ModelVector([parameter.detach() for parameter in self._parameters])
        taken = torch.tensor(float(steps), dtype=torch.float64, device=self._step.device)
        kept, uploads = check_finish(self._algorithm, self._algorithm.finish(weights, self._sent, self._own, taken, lr))
        return self._copied(kept), self._copied(uploads)

    def _copied(self, vectors: Vectors) -> dict[str, Model]:
        return {
            name: dict(zip(self._names, (value.clone() for value in vector.tensors), strict=True))
            for name, vector in vectors.items()
        }

    def _vector(self, entries: Model) -> ModelVector:
        return ModelVector([entries[name].to(self._step.device) for name in self._names])


def clip_factor(gradients: Sequence[Tensor], clip: float | None) -> Tensor | None:
    """What brings the gradients' common norm down to `clip`, at most 1; None without a bound."""
    if clip is None:
        return None
    norm: Tensor = torch.stack(torch._foreach_norm(list(gradients))).norm()
    factor: Tensor = (clip / norm).clamp(max=1.0)
    return factor


def sgd_step(parameters: list[Tensor], gradients: list[Tensor], lr: float | Tensor, scale: Tensor | None) -> None:
    """One step of SGD, in place; `scale` is the gradients' clip factor."""
    step = torch.as_tensor(lr, dtype=gradients[0].dtype, device=gradients[0].device)
    if scale is not None:
        step = step * scale
    with torch.no_grad():
        torch._foreach_mul_(gradients, -step)
        torch._foreach_add_(parameters, gradients)
