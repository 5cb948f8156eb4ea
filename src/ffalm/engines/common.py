"""What all engines share: model inputs, evaluation, averaging, the record of a round and the check for divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ffalm.algorithms import Algorithm, State
from ffalm.data.types import Examples, Task
from ffalm.engines.base import Job, Local
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.outcome import Record
from ffalm.randomness import Purpose, torch_seeded

_EVALUATED_VALUES = 2**24  # feature values per evaluation batch: bounds memory whatever the shape of the input


def built_model(job: Local) -> nn.Module:
    """The job's fresh model on its device, initialised by the job's seed alone."""
    with torch_seeded(job.seed, Purpose.MODEL):
        model = job.model()
    if not isinstance(model, nn.Module):
        raise UserError(f"The model function must return an nn.Module; it returned {type(model).__name__}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("The model has no parameter to train: give it one, or unfreeze some with requires_grad_().")
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    last = job.device.type == "cpu" if job.channels_last is None else job.channels_last
    if images and last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(job.device)


def frozen_parameters(model: nn.Module) -> frozenset[str]:
    """The names of what training leaves as it is."""
    return frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def checked_model(job: Job) -> nn.Module:
    """The job's fresh model, tried on two rows: a model that does not fit the data is found before any training."""
    model = built_model(job)
    examples = job.federation.first_rows(2)
    try:
        with autocast(job):
            evaluate(model, examples.to(job.device), job.federation.task)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(examples.x.shape[1:])
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"The model cannot take features of shape {shape}: {reason}.") from error
    return model


def dtype_of(model: nn.Module) -> torch.dtype:
    """The floating type in which a model computes."""
    return next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)


def inputs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Features as the model takes them; bytes of images become numbers from 0 to 1."""
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)


def row_losses(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    """Softmax cross-entropy and logits of each row."""
    try:
        logits = model(x)
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise UserError(
                "BatchNorm cannot train on the single row that is a client's last batch: choose another batch_size."
            ) from None
        raise
    if not isinstance(logits, Tensor):
        raise UserError(f"The model must give a tensor of logits; it gave a {type(logits).__name__}.")
    if logits.ndim != 2 or logits.shape[-1] != labels:
        raise UserError(
            f"The model must give one logit a label, of shape (rows, {labels}); it gave {tuple(logits.shape)}."
        )
    return cross_entropy(logits, y, reduction="none"), logits


def autocast(job: Local) -> torch.autocast:
    """The job's precision for a forward pass; losses come out in float32 whatever it is."""
    return torch.autocast(job.device.type, torch.bfloat16, enabled=job.precision == "bf16")


def descend(
    parameters: Sequence[Tensor], losses: Tensor, weights: Tensor, lr: float | Tensor, clip: float | None
) -> None:
    """One step of SGD along the weighted sum of row gradients, its norm clipped."""
    found = torch.autograd.grad(losses, parameters, weights, allow_unused=True)
    used = [parameter for parameter, gradient in zip(parameters, found, strict=True) if gradient is not None]
    gradients = [gradient for gradient in found if gradient is not None]
    step = torch.as_tensor(lr, dtype=losses.dtype, device=losses.device)
    if clip is not None:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        step = step * (clip / norm).clamp(max=1.0)
    with torch.no_grad():
        torch._foreach_mul_(gradients, -step)
        torch._foreach_add_(used, gradients)


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, task: Task) -> Tally:
    """The Tally of a model on examples, in evaluation mode and without any effect on it."""
    training = model.training
    model.eval()
    dtype = dtype_of(model)
    shape = (task.labels, task.groups)
    total = Tally.zeros(shape, examples.x.device)
    size = max(1, _EVALUATED_VALUES // max(1, examples.x[0].numel()))
    for first in range(0, len(examples), size):
        rows = slice(first, first + size)
        y, group = examples.y[rows], examples.group[rows]
        losses, logits = row_losses(model, inputs(examples.x[rows], dtype), y, task.labels)
        total = total + Tally.of(logits.argmax(-1), losses, y, group, shape)
    model.train(training)
    return total.to("cpu")


def average(models: Sequence[dict[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    """The weighted mean of the clients' complete states, BatchNorm statistics included, in the order given.

    Sums are kept in float64; counters, which have no mean, take the largest value.
    """
    mean: dict[str, Tensor] = {}
    for name, like in models[0].items():
        if like.dtype.is_floating_point:
            total = torch.zeros_like(like, dtype=torch.float64)
            for model, weight in zip(models, weights.tolist(), strict=True):
                total += weight * model[name].double()
            mean[name] = total.to(like.dtype)
        else:
            mean[name] = torch.stack([model[name] for model in models]).amax(0)
    return mean


def broadcast(algorithm: Algorithm, state: State, dtype: torch.dtype, device: torch.device) -> State:
    """The part of the server's state that clients receive, in the precision in which they compute."""
    return {name: state[name].to(device=device, dtype=dtype) for name in algorithm.broadcasts}


def record_of(
    round: int, validation: Tally | None, favourable: int, state: State, weights: Tensor, extra: dict[str, Any]
) -> Record:
    """A round in plain values: validation metrics, the server's state, the clients' weights, and what else was seen."""
    scores = {} if validation is None else validation.metrics(favourable)
    plain = {name: value.tolist() for name, value in state.items()}
    return {"round": round, **scores, **plain, "weights": weights.tolist(), **extra}


def divergence(algorithm: Algorithm, round: int, loss: float, state: State, model: dict[str, Tensor]) -> str | None:
    """Why a run must stop after this round, in one sentence; None where all its numbers are finite."""
    lost = [name for name, value in state.items() if not bool(value.isfinite().all())]
    finite = bool(torch.stack([value.isfinite().all() for value in model.values()]).all())
    if math.isfinite(loss) and finite and not lost:
        return None
    what = f"its {lost[0]} is" if lost else "its loss or model is"
    shown = ", ".join(f"{name} = {_shown(state[name])}" for name in state if state[name].numel() <= 8)
    values = f" ({shown})" if shown else ""
    return f"{algorithm.title} diverged in round {round}: {what} no longer finite{values}; try {algorithm.remedies}."


def _shown(value: Tensor) -> str:
    numbers = [f"{number:.4g}" for number in value.flatten().tolist()]
    return numbers[0] if value.ndim == 0 else f"({', '.join(numbers)})"
