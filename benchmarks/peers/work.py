"""The work that every simulator of the comparison does, in numpy and torch alone.

`export.py` writes it to one file: rows and who owns them, the initial model, and the order of rows in every round.
Peers know nothing of ffalm but the class of its ResNet-18, which needs torch only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


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
        """What `export.py` wrote; from now on torch computes in the precision of its model."""
        with np.load(path) as file:
            held = {name: torch.from_numpy(file[name]) for name in file.files}
        sizes = held["sizes"].tolist()
        train = Part(held["x"], held["y"], held["group"])
        start = {name.removeprefix("start/"): value for name, value in held.items() if name.startswith("start/")}
        torch.set_default_dtype(next(iter(start.values())).dtype)
        return cls(
            train,
            [train.take(rows) for rows in torch.split(held["rows"], sizes)],
            Part(held["test_x"], held["test_y"], held["test_group"]),
            start,
            [list(torch.split(order.long(), sizes)) for order in held["orders"]],
        )

    @property
    def images(self) -> bool:
        """Whether this is the image study."""
        return self.train.x.ndim == 4

    def model(self) -> nn.Module:
        """The initial model; one of images in the memory layout that is fastest on a CPU."""
        if self.images:
            from ffalm.models.resnet import ResNet18

            model = ResNet18().build(tuple(self.train.x.shape[1:]), 2)
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:
            hidden, width = self.start["0.weight"].shape
            model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        model.load_state_dict(self.start)
        return model


def inputs(x: Tensor) -> Tensor:
    """What a model takes; bytes of images become numbers from 0 to 1."""
    return x.to(torch.get_default_dtype()) / 255 if x.dtype == torch.uint8 else x


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
    model.train()
    for rows in torch.split(order, BATCH):
        batch = part.take(rows)
        optimiser.zero_grad()
        losses = cross_entropy(model(inputs(batch.x)), batch.y, reduction="none")
        torch.autograd.backward(objective(losses, batch.group, dual, penalty))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()


@torch.no_grad()
def _logits(model: nn.Module, part: Part) -> Tensor:
    """Of all rows, in evaluation mode; the model is left ready to train."""
    model.eval()
    logits = model(inputs(part.x))
    model.train()
    return logits  # type: ignore[no-any-return]


def gap(model: nn.Module, part: Part) -> float:
    """The difference of the two groups' mean losses; 0 where one is missing."""
    losses = cross_entropy(_logits(model, part), part.y, reduction="none")
    first, second = (losses[part.group == group].mean() for group in (0, 1))
    return float((first - second).nan_to_num(0.0))


def dual_step(number: int) -> float:
    """How far the dual moves along the gap in a round, counted from 0."""
    return DUAL_LR * GROWTH**number


def scores(model: nn.Module, part: Part) -> dict[str, float]:
    """Accuracy, demographic parity difference, equal opportunity difference and mean loss."""
    with _all_cores(part):
        logits = _logits(model, part)
    chosen = logits.argmax(-1)
    rates = [(chosen[part.group == group] == 1).double().mean() for group in (0, 1)]
    true = [(chosen[(part.group == group) & (part.y == 1)] == 1).double().mean() for group in (0, 1)]
    return {
        "accuracy": float((chosen == part.y).double().mean()),
        "dpd": float((rates[0] - rates[1]).abs()),
        "eod": float((true[0] - true[1]).abs()),
        "loss": float(cross_entropy(logits, part.y)),
    }


@contextmanager
def _all_cores(part: Part) -> Iterator[None]:
    """Score images on every core, also where clients train on one each: they all wait meanwhile."""
    threads = torch.get_num_threads()
    if part.x.ndim == 4:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(threads)


class Ledger:
    """When each round was done and what the model was then worth; one JSON file for the runner.

    CPU time is that of the process `top`, this one unless told, and of all below it.
    """

    def __init__(self, path: str, top: int | None = None) -> None:
        self._path, self._top = Path(path), top or os.getpid()
        self._rounds: list[dict[str, Any]] = []

    def note(self, found: dict[str, float]) -> None:
        """A round is done."""
        own = time.process_time()
        others = {self._top, *descendants(self._top)} - {os.getpid()}
        self._rounds.append({"at": time.monotonic(), "cpu": own + sum(map(_cpu_of, others)), **found})

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
