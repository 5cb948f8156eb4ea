"""What all engines share about models: building and checking them, inputs, losses, gradients, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.weak import WeakIdKeyDictionary

from ffalm.algorithms import Algorithm, Batch, Rows, State
from ffalm.algorithms.checks import tensors
from ffalm.data.types import Examples, Task
from ffalm.engines.jobs import ClientSpec, Job, Model
from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.histograms import scores_of
from ffalm.randomness import Purpose, torch_seeded

SINGLE_ROW = "BatchNorm cannot train on the single row that is a client's last batch: choose another batch_size."

#: Parameters of the models that were built and still exist.
_built = WeakIdKeyDictionary()

_EVALUATED_VALUES = 2**24  # feature values per evaluation batch: bounds memory whatever the shape of the input


def built_model(spec: ClientSpec) -> nn.Module:
    """The fresh model on its device, initialised by the seed alone."""
    with torch_seeded(spec.seed, Purpose.MODEL):
        model = spec.model()
    if not isinstance(model, nn.Module):
        raise UserError(f"The model function must return an nn.Module; it returned {type(model).__name__}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("The model has no parameter to train: give it one, or unfreeze some with requires_grad_().")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter in _built for parameter in trained):
        raise UserError(
            "The function that makes the model returned the same module, or layers of it, a second time: it must make "
            "a new module on every call, since every run starts from fresh weights."
        )
    _built.update(dict.fromkeys(trained))
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    last = spec.device.type == "cpu" if spec.channels_last is None else spec.channels_last
    if images and last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(spec.device)


def trained_parameters(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The parameters that training moves, in the model's order, and the other names of each that is tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    return {first: tuple(others) for first, *others in names.values()}


def frozen_parameters(model: nn.Module) -> frozenset[str]:
    """The names of what training leaves as it is."""
    return frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def checked_model(job: Job) -> nn.Module:
    """The job's fresh model, tried on two rows: a model that does not fit the data is found before any training."""
    model = built_model(job.spec)
    examples = job.federation.first_rows(2)
    try:
        with autocast(job.spec):
            evaluate(model, examples.to(job.spec.device), job.federation.task)
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
            raise UserError(SINGLE_ROW) from None
        raise
    if not isinstance(logits, Tensor):
        raise UserError(f"The model must give a tensor of logits; it gave a {type(logits).__name__}.")
    if logits.ndim != 2 or logits.shape[-1] != labels:
        raise UserError(
            f"The model must give one logit per label, of shape (rows, {labels}); it gave {tuple(logits.shape)}."
        )
    return cross_entropy(logits, y, reduction="none"), logits


def autocast(spec: ClientSpec) -> torch.autocast:
    """The precision of a forward pass; losses come out in float32 whatever it is."""
    return torch.autocast(spec.device.type, torch.bfloat16, enabled=spec.precision == "bf16")


def evaluate(model: nn.Module, examples: Examples, task: Task) -> Tally:
    """The Tally of a model on examples."""
    shape = (task.labels, task.groups)
    total = Tally.zeros(shape, examples.x.device)
    for rows, losses, logits in _scored_batches(model, examples, task):
        total = total + Tally.of(logits.argmax(-1), losses, examples.y[rows], examples.group[rows], shape)
    return total.to("cpu").excluding(task.excluded)


def evaluate_with_scores(model: nn.Module, examples: Examples, task: Task) -> tuple[Tally, ScoreHistogram]:
    """The Tally and the score histogram of a model on examples, from one pass over them."""
    shape = (task.labels, task.groups)
    tally, histogram = Tally.zeros(shape, examples.x.device), ScoreHistogram.zeros(shape, task.favourable)
    for rows, losses, logits in _scored_batches(model, examples, task):
        y, group = examples.y[rows], examples.group[rows]
        tally = tally + Tally.of(logits.argmax(-1), losses, y, group, shape)
        scores, fallback = scores_of(logits, task.favourable)
        histogram = histogram + ScoreHistogram.of(scores, fallback, y, group, shape, task.favourable)
    return tally.to("cpu").excluding(task.excluded), replace(histogram, excluded=task.excluded)


def logits_of(model: nn.Module, examples: Examples, task: Task) -> Tensor:
    """The logits of each row, of shape (rows, labels)."""
    found = [logits.float().cpu() for _, _, logits in _scored_batches(model, examples, task)]
    return torch.cat([torch.zeros(0, task.labels), *found])


@torch.no_grad()
def _scored_batches(model: nn.Module, examples: Examples, task: Task) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows with their losses and logits, in evaluation mode and without any effect on the model."""
    if len(examples) == 0:
        return
    training, dtype = model.training, dtype_of(model)
    model.eval()
    size = max(1, _EVALUATED_VALUES // max(1, examples.x[0].numel()))
    for first in range(0, len(examples), size):
        rows = slice(first, first + size)
        yield rows, *row_losses(model, inputs(examples.x[rows], dtype), examples.y[rows], task.labels)
    model.train(training)


def broadcast(algorithm: Algorithm, state: State, dtype: torch.dtype, device: torch.device) -> State:
    """The part of the server's state that clients receive, in the precision in which they compute."""
    return {name: state[name].to(device=device, dtype=dtype) for name in algorithm.broadcasts if name in state}


def own_state(algorithm: Algorithm, task: Task, counts: Tensor, dtype: torch.dtype, device: torch.device) -> State:
    """What a client with these rows per (label, group) adds to the state that it received."""
    own = tensors(algorithm, "own_state", algorithm.own_state(task, counts.cpu()))
    return {name: value.to(device=device, dtype=dtype) for name, value in own.items()}


def broadcast_vectors(algorithm: Algorithm, vectors: dict[str, Model]) -> dict[str, Model]:
    """The server's vectors that clients receive."""
    return {name: vectors[name] for name in algorithm.broadcasts if name in vectors}


def gradients(
    parameters: Sequence[Tensor], algorithm: Algorithm, rows: Rows, losses: Tensor, logits: Tensor, state: State
) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """The objective's gradient by each parameter, and whether it pushes some row's loss up."""
    if algorithm.by_outputs(rows.task):
        slopes = algorithm.slopes(Batch(rows, losses.detach(), logits.detach()), state)
        found = torch.autograd.grad(logits, parameters, slopes, allow_unused=True)
        return found, raised_losses(slopes, logits.detach(), rows.labels).any()
    slopes = algorithm.slopes(Batch(rows, losses.detach()), state)
    return torch.autograd.grad(losses, parameters, slopes, allow_unused=True), (slopes < 0).any()


def objective_gradients(
    parameters: Sequence[Tensor], algorithm: Algorithm, rows: Rows, losses: Tensor, logits: Tensor, state: State
) -> tuple[Tensor, list[list[Tensor]]]:
    """The values of the algorithm's `objectives`, and the gradient of each by every parameter."""
    by_outputs = algorithm.by_outputs(rows.task)
    batch = Batch(rows, losses.detach(), logits.detach() if by_outputs else None)
    values, slopes = algorithm.objective_slopes(batch, state)
    vectors = []
    for slope in slopes:
        by_parameter = torch.autograd.grad(
            logits if by_outputs else losses, parameters, slope, retain_graph=True, allow_unused=True
        )
        vectors.append([
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(parameters, by_parameter, strict=True)
        ])  # fmt: skip
    return values, vectors


def raised_losses(slopes: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
    """For each row, whether a small step of its logits against these slopes raises its loss.

    The loss changes by -slopes . (softmax(outputs) - onehot(label)).
    """
    by_logits = outputs.softmax(-1) - one_hot(labels, outputs.shape[-1])
    change: Tensor = -torch.linalg.vecdot(slopes, by_logits)
    return change > 0
