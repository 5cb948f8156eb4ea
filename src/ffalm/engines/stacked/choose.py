"""Which kernel runs a model, and why some models cannot be stacked at all."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ffalm.engines.common import dtype_of, inputs
from ffalm.engines.jobs import ClientSpec
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.stacked.binary_columns import binary_columns
from ffalm.engines.stacked.kernels import Kernel, Layered
from ffalm.engines.stacked.layout import layout_of
from ffalm.engines.stacked.mapped import Mapped
from ffalm.engines.stacked.network import read_network
from ffalm.engines.stacked.onehot import OneHot

_SAME = 1e-3  # relative difference under which two logits of one row count as the same


def why_not_stacked(model: nn.Module, x: Tensor) -> str | None:
    """Why this engine cannot run a model on features like `x`, as the rest of "it cannot be stacked: ..."; else None.

    Clients of unequal size share a stack by filling their last batches up with rows that count for nothing. A layer
    that looks across the rows of a batch would see them, so such layers are refused, as are layers that draw at
    random (every client has its own draws) and code that depends on values.
    """
    for name, module in model.named_modules():
        kind = f"its layer {name or 'model'!r} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"{kind} mixes the rows of a batch"
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"{kind} draws at random, for each client on its own"
    if read_network(model, x.shape[1:]) is not None:
        return None
    return _why_not_mapped(copy.deepcopy(model), x)


def folds(spec: ClientSpec) -> bool:
    """Whether training may work on the rotated weights of two logits: all it does with them is to follow gradients.

    Adam's steps, weight decay, proximal terms, server optimisers and objectives of the logits would come out different.
    """
    return (
        local_optimizer(spec.training).rotates
        and spec.algorithm.only_averages
        and not spec.algorithm.by_outputs(spec.task)
    )


def kernel_for(model: nn.Module, parts: Sequence[Tensor], spec: ClientSpec) -> Kernel:
    """The fastest kernel that runs the model on these features."""
    device = spec.device
    dtype = dtype_of(model)
    network = read_network(model, parts[0].shape[1:])
    if network is None:
        return Mapped(copy.deepcopy(model), dtype, device)
    layout = layout_of(network, dict(model.named_parameters()), folds(spec))
    entered = network.entered_by()
    if entered is not None and device.type == "cpu" and all(part.dtype.is_floating_point for part in parts):
        columns = binary_columns(parts)
        if columns.worth_it:
            return OneHot(network, layout, entered, columns, dtype)
    return Layered(network, layout, dtype, device)


def values_per_row(model: nn.Module, x: Tensor) -> int:
    """How many numbers a row needs on its way through the model: what a batch's memory is planned by."""
    seen = x[0].numel()

    def count(module: nn.Module, given: object, result: object) -> None:
        nonlocal seen
        seen += result.numel() if isinstance(result, Tensor) else 0

    probe = copy.deepcopy(model).eval()
    hooks = [module.register_forward_hook(count) for module in probe.modules() if not list(module.children())]
    with torch.no_grad():
        probe(_probed(probe, x)[:1])
    for hook in hooks:
        hook.remove()
    return seen


def _why_not_mapped(model: nn.Module, x: Tensor) -> str | None:
    """Try the model on a few rows in both modes: mapped and not, together and alone."""
    rows = _probed(model, x)
    parameters = {name: entry.detach() for name, entry in model.named_parameters()}
    for training in (True, False):
        model.train(training)
        buffers = {name: entry.clone() for name, entry in model.named_buffers()}
        stacked = {name: torch.stack([entry, entry]) for name, entry in {**parameters, **buffers}.items()}
        try:
            with torch.no_grad():
                mapped = vmap(lambda entries, batch: functional_call(model, entries, (batch,)))(
                    stacked, torch.stack([rows, rows])
                )[0]
                together, alone = model(rows), torch.cat([model(row.unsqueeze(0)) for row in rows])
        except Exception as error:
            # The author's code fails in its own ways under torch.func; the first line says which.
            return f"torch.func cannot map it ({str(error).strip().splitlines()[0].rstrip('.')})"
        if any(not torch.equal(entry, buffers[name]) for name, entry in model.named_buffers()):
            return "it changes its buffers as it trains"
        if not _close(mapped, together):
            return "it gives other results when it is mapped over clients"
        if not _close(together, alone):
            return "it mixes the rows of a batch"
    return None


def _probed(model: nn.Module, x: Tensor) -> Tensor:
    """A few rows as the model takes them."""
    device = next((entry.device for entry in model.parameters()), x.device)
    return inputs(x[:3].to(device), dtype_of(model))


def _close(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=_SAME, atol=_SAME)
