"""What no engine can beat: the arithmetic of a round over the rate at which one core multiplies matrices."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

SIDE = 2048


@dataclass(frozen=True)
class Floor:
    """The dense floor of the MLP's rounds on one core."""

    gflops: float  # measured rate
    fedavg_gflop: float  # a round
    ffalm_gflop: float

    def ms(self, algorithm: str) -> float:
        """Milliseconds a round."""
        return 1e3 * (self.ffalm_gflop if algorithm == "ffalm" else self.fedavg_gflop) / self.gflops


def rate(repeats: int = 12) -> float:
    """GFLOP/s of one core in float32, the best of a few products of large matrices."""
    torch.set_num_threads(1)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    return 2e-9 * SIDE**3 / min(seconds)


def floor(train_rows: int, test_rows: int, inputs: int, hidden: int = 64, labels: int = 2) -> Floor:
    """Forward and backward over all training rows, forward over the test rows; FFALM's dual is one more forward."""
    forward = 2e-9 * (inputs * hidden + hidden * labels)
    backward = forward + 2e-9 * hidden * labels  # the gradient by the input of the first layer is not needed
    fedavg = train_rows * (forward + backward) + test_rows * forward
    return Floor(rate(), fedavg, fedavg + train_rows * forward)
