"""Score histograms on the wire: most bins are empty, so the counts travel compressed, a few bytes a row at most."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram

PARTS = {"training": "train", "validation": "validation", "test": "test"}
"""The parts whose scores the answer to a target rests on, each with its name in agreed counts and messages."""

_COUNT = np.dtype("<i4")


def packed_counts(histogram: ScoreHistogram) -> Tensor:
    """The counts as compressed bytes."""
    content = zlib.compress(histogram.counts.numpy().astype(_COUNT).tobytes(), 9)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpacked_counts(content: Tensor, task: Task) -> ScoreHistogram | None:
    """The histogram in such bytes; None where they are not one of this task's."""
    like = ScoreHistogram.zeros((task.labels, task.groups), task.favourable)
    size = like.counts.numel() * _COUNT.itemsize
    if content.dtype != torch.uint8:
        return None
    try:
        found = zlib.decompressobj().decompress(content.numpy().tobytes(), size + 1)  # however much is compressed
    except zlib.error:
        return None
    if len(found) != size:
        return None
    counts = torch.from_numpy(np.frombuffer(found, _COUNT).astype(np.int64)).view(like.counts.shape)
    return replace(like, counts=counts, excluded=task.excluded) if bool((counts >= 0).all()) else None
