"""What no engine can beat: the arithmetic of a round over the rate at which the cores multiply matrices."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

SIDE = 2048


@dataclass(frozen=True)
class Floor:
    """The dense floor of a model's rounds."""

    gflops: float  # measured rate
    fedavg_gflop: float  # a round
    ffalm_gflop: float

    def ms(self, algorithm: str) -> float:
        """Milliseconds a round."""
        return 1e3 * (self.ffalm_gflop if algorithm == "ffalm" else self.fedavg_gflop) / self.gflops


def rate(repeats: int = 12) -> float:
    """GFLOP/s of one core in float32, the best of a few products of large matrices.

    By the thread's own time, so that a core shared with others counts as a whole one.
    """
    torch.set_num_threads(1)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    seconds = []
    for _ in range(repeats):
        began = time.thread_time()
        torch.mm(a, b)
        seconds.append(time.thread_time() - began)
    return 2e-9 * SIDE**3 / min(seconds)


def floor(train_rows: int, test_rows: int, inputs: int, hidden: int = 64, labels: int = 2) -> Floor:
    """The MLP's on one core: forward and backward over all training rows, forward over the test rows.

    FFALM's dual is one more forward over the training rows.
    """
    forward = 2e-9 * (inputs * hidden + hidden * labels)
    backward = forward + 2e-9 * hidden * labels  # the gradient by the input of the first layer is not needed
    fedavg = train_rows * (forward + backward) + test_rows * forward
    return Floor(rate(), fedavg, fedavg + train_rows * forward)


def counted_floor(model: nn.Module, x: Tensor, train_rows: int, test_rows: int, cores: int) -> Floor:
    """Of any model on several cores, by counting what torch does to a few rows of its input."""
    with FlopCounterMode(display=False) as ahead:
        logits = model(x)
    with FlopCounterMode(display=False) as back:
        logits.sum().backward()
    forward, backward = (1e-9 * one.get_total_flops() / len(x) for one in (ahead, back))
    fedavg = train_rows * (forward + backward) + test_rows * forward
    return Floor(cores * rate(), fedavg, fedavg + train_rows * forward)
