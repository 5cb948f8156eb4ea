"""Who takes part in a round and in which batches a client sees its rows: the same for every engine."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffalm.randomness import Purpose, generator
from ffalm.run_settings import Training


def participants(seed: int, round: int, clients: int, participation: float) -> list[int]:
    """The clients of a round in the order of their numbers: a fixed share of all, at least one."""
    wanted = max(1, round_half_up(participation * clients))
    if wanted >= clients:
        return list(range(clients))
    chosen = generator(seed, Purpose.PARTICIPATION, round).choice(clients, size=wanted, replace=False)
    return sorted(int(client) for client in chosen)


def batches(seed: int, round: int, client: int, rows: int, training: Training) -> list[Tensor]:
    """The row numbers of each local step. Every epoch is a fresh shuffle; its last batch may be smaller."""
    order, sizes = drawn(seed, round, client, rows, training)
    return list(torch.split(torch.from_numpy(order), sizes.tolist()))


def drawn(
    seed: int, round: int, client: int, rows: int, training: Training
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row numbers of all local steps one after the other, and how many of them each step takes."""
    draws = generator(seed, Purpose.BATCHES, round, client)
    size = min(training.batch_size or rows, rows)
    per_epoch = -(-rows // size)
    steps = training.local_steps or training.local_epochs * per_epoch
    epochs = -(-steps // per_epoch)
    orders = [draws.permutation(rows) if size < rows else np.arange(rows) for _ in range(epochs)]
    every = [*[size] * (per_epoch - 1), rows - size * (per_epoch - 1)] * epochs
    order = orders[0] if epochs == 1 else np.concatenate(orders)
    return order[: sum(every[:steps])], np.array(every[:steps])


def round_half_up(value: float) -> int:
    """To the nearest whole number, halves upwards (Python's own `round` sends 0.5 to 0 and 1.5 to 2)."""
    return int(np.floor(value + 0.5))
