"""The work of the Flower benchmark, for both apps: whose rows, which model, and where times are written.

Nothing here imports ffalm, so that the plain app is what anybody would write without it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

BATCH, LR, CLIP = 128, 0.05, 1.0


class Net(nn.Module):
    """One hidden layer, and as many idle parameters of the given shapes as a larger model would send."""

    def __init__(self, features: int, idle: list[list[int]]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 2))
        self.idle = nn.ParameterList([torch.rand(shape) for shape in idle])

    def forward(self, x: Tensor) -> Tensor:
        """Logits; nothing of it depends on the idle parameters."""
        logits: Tensor = self.layers(x)
        return logits


def folder() -> Path:
    """Where a case's rows, shapes and times lie."""
    return Path(os.environ["FLOWER_BENCHMARK"])


def plan() -> dict[str, object]:
    """Clients, rounds, features and idle shapes of the case."""
    found: dict[str, object] = json.loads((folder() / "plan.json").read_text())
    return found


def model() -> Net:
    """The case's model."""
    found = json.loads((folder() / "plan.json").read_text())
    return Net(found["features"], found["idle"])


def rows(client: int) -> tuple[Tensor, Tensor, Tensor]:
    """A client's features, labels and groups."""
    found = np.load(folder() / f"rows-{client}.npz")
    return torch.from_numpy(found["x"]), torch.from_numpy(found["y"]), torch.from_numpy(found["group"])


class Clock:
    """The end of each round, written down as it happens."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def tick(self) -> None:
        """A round is done."""
        self._ends.append(time.time())
        (folder() / "ends.json").write_text(json.dumps(self._ends))
