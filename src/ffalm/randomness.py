"""Randomness is a function, not a history: every draw comes from a generator keyed by what it is for.

Because no draw depends on the ones before it, resuming needs no generator state, evaluating never changes a
trajectory, a client that drops out leaves the others' batches alone, and every engine sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np

from ffalm.system.torch_modes import TURN


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of every result: never renumber them."""

    MODEL = 1
    PARTITION = 2
    BATCHES = 3
    PARTICIPATION = 4
    LAYERS = 5  # dropout and other randomness inside the model
    DATA = 6
    SPLIT = 7
    BOOTSTRAP = 8
    MODEL_NOISE = 9
    TALLY_NOISE = 10
    SCORE_NOISE = 11


def generator(seed: int, purpose: Purpose, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator of one purpose, round and client under one seed."""
    return np.random.default_rng([seed, int(purpose), round, client])


@contextmanager
def torch_seeded(seed: int, purpose: Purpose, round: int = 0, client: int = 0) -> Iterator[None]:
    """Run a block with torch's global generators keyed like `generator`, and give the caller's back afterwards.

    Threads take turns, since they share the generators.
    """
    import torch

    draw = int(generator(seed, purpose, round, client).integers(2**63 - 1))
    with TURN, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if torch.accelerator.is_available():
            torch.manual_seed(draw)
        else:  # for devices that are not there torch would write down the whole call stack each time
            torch.default_generator.manual_seed(draw)
        yield
