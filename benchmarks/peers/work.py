"""The work that every simulator of the comparison does, in numpy and torch alone: peers know nothing of ffalm.

`export.py` writes it to one file: rows and who owns them, the initial model, and the order of rows in every round.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH, LR, CLIP = 128, 0.05, 1.0
PENALTY, DUAL_LR, GROWTH = 2.0, 2.0, 1.05
TICK = os.sysconf("SC_CLK_TCK")

torch.set_num_threads(1)


@dataclass(frozen=True)
class Part:
    """Rows that belong together."""

    x: Tensor
    y: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Part:
        """The part at these row numbers."""
        return Part(self.x[rows], self.y[rows], self.group[rows])


@dataclass(frozen=True)
class Work:
    """One study of one seed."""

    train: Part
    clients: list[Part]
    test: Part
    start: dict[str, Tensor]
    orders: list[list[Tensor]]  # by round, counted from 0, and client

    @classmethod
    def load(cls, path: str) -> Work:
        """What `export.py` wrote."""
        with np.load(path) as file:
            held = {name: torch.from_numpy(file[name]) for name in file.files}
        sizes = held["sizes"].tolist()
        train = Part(held["x"], held["y"], held["group"])
        return cls(
            train,
            [train.take(rows) for rows in torch.split(held["rows"], sizes)],
            Part(held["test_x"], held["test_y"], held["test_group"]),
            {name.removeprefix("start/"): value for name, value in held.items() if name.startswith("start/")},
            [list(torch.split(order.long(), sizes)) for order in held["orders"]],
        )

    def model(self) -> nn.Sequential:
        """The initial model."""
        hidden, inputs = self.start["0.weight"].shape
        model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        model.load_state_dict(self.start)
        return model


def objective(losses: Tensor, group: Tensor, dual: float, penalty: float) -> Tensor:
    """FFALM's objective of a batch; FedAvg's where the penalty is 0."""
    loss = losses.mean()
    if penalty and (group == 0).any() and (group == 1).any():
        gap = losses[group == 0].mean() - losses[group == 1].mean()
        loss = loss + dual * gap + penalty / 2 * gap**2
    return loss


def train(model: nn.Module, part: Part, order: Tensor, dual: float, penalty: float) -> None:
    """One local epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in torch.split(order, BATCH):
        batch = part.take(rows)
        optimiser.zero_grad()
        losses = cross_entropy(model(batch.x), batch.y, reduction="none")
        torch.autograd.backward(objective(losses, batch.group, dual, penalty))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()


@torch.no_grad()
def gap(model: nn.Module, part: Part) -> float:
    """The difference of the two groups' mean losses; 0 where one is missing."""
    losses = cross_entropy(model(part.x), part.y, reduction="none")
    first, second = (losses[part.group == group].mean() for group in (0, 1))
    return float((first - second).nan_to_num(0.0))


def dual_step(number: int) -> float:
    """How far the dual moves along the gap in a round, counted from 0."""
    return DUAL_LR * GROWTH**number


@torch.no_grad()
def scores(model: nn.Module, part: Part) -> dict[str, float]:
    """Accuracy, demographic parity difference and equal opportunity difference."""
    chosen = model(part.x).argmax(-1)
    rates = [(chosen[part.group == group] == 1).double().mean() for group in (0, 1)]
    true = [(chosen[(part.group == group) & (part.y == 1)] == 1).double().mean() for group in (0, 1)]
    return {
        "accuracy": float((chosen == part.y).double().mean()),
        "dpd": float((rates[0] - rates[1]).abs()),
        "eod": float((true[0] - true[1]).abs()),
    }


class Ledger:
    """When each round was done and what the model was then worth; one JSON file for the runner."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._rounds: list[dict[str, Any]] = []

    def note(self, found: dict[str, float]) -> None:
        """A round is done."""
        own = time.process_time()
        below = sum(_cpu_of(pid) for pid in descendants(os.getpid()))
        self._rounds.append({"at": time.monotonic(), "cpu": own + below, **found})

    def close(self, **about: str) -> None:
        """Write all rounds, and what ran."""
        self._path.write_text(json.dumps({"rounds": self._rounds, **about, "torch": torch.__version__}))


def descendants(pid: int) -> list[int]:
    """The living processes that a process started, and those that they started."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except OSError:
        pass  # it ended meanwhile
    return found


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK
