"""The device and the number of threads of a run; both are set explicitly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ffalm.errors import UserError, require
from ffalm.system.torch_modes import TURN, usual_modes


def device(name: str = "auto") -> torch.device:
    """A device by its name; "auto" is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device {name!r}: choose auto, cpu or cuda.") from None
    if chosen.type == "cuda":
        require(
            torch.cuda.is_available(), f"The device {name!r} is not available, since torch finds no GPU here: use cpu."
        )
        require(
            (chosen.index or 0) < torch.cuda.device_count(),
            f"The device {name!r} is not available: torch finds {torch.cuda.device_count()} GPU(s).",
        )
    require(chosen.type in ("cpu", "cuda"), f"The device {name!r} is not supported: choose auto, cpu or cuda.")
    return chosen


def spread_over(name: str, workers: int | None) -> list[str]:
    """The device of each process of a study: one process per core or per GPU, unless a number is given."""
    chosen = device(name)
    if chosen.type == "cpu":
        return ["cpu"] * (workers or cores())
    visible = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    usable = visible if chosen.index is None else [str(chosen)]
    return [usable[index % len(usable)] for index in range(workers or len(usable))]


def cores() -> int:
    """The CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(model: nn.Module, processes: int = 1) -> int:
    """Torch threads for one of several processes: convolutions gain from several, small matrices lose."""
    convolutional = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules())
    return max(1, cores() // processes) if convolutional else 1


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one for a block, since Triton and graph captures use the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def deterministic(threads: int, tf32: bool = False) -> Iterator[None]:
    """Run a block on this many torch threads with deterministic GPU kernels, and restore the caller's settings.

    Threads take turns, and the caller's modes (`torch.no_grad`, autocast, a default device) do not apply in the block.

    `tf32` lets a GPU round the inputs of float32 products to 10 bits of mantissa; torch's own default is to do so in
    convolutions only.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with TURN, usual_modes():
        before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, tf32, tf32
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before[1:]
