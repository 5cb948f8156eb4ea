"""Score histograms on the wire, deflated: most bins are empty, so they are small beside a round's models.

The counts are sent as 32-bit numbers, cell by cell and bin by bin: first the lowest byte of each, then the other bytes,
nearly all of which are 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram

PARTS = {"training": "train", "validation": "validation", "test": "test"}
"""The parts whose scores the answer to a target rests on, each with its name in agreed counts and messages."""

_COUNT = np.dtype("<u4")


def packed_histograms(parts: Mapping[str, ScoreHistogram]) -> Tensor:
    """The counts of all parts, by their names in messages, as bytes."""
    counts = torch.stack([parts[part].counts.movedim(0, -1) for part in PARTS.values()])
    by_place = counts.numpy().astype(_COUNT).reshape(-1, 1).view(np.uint8).T
    return torch.frombuffer(bytearray(zlib.compress(by_place.tobytes(), 9)), dtype=torch.uint8)


def unpacked_histograms(content: Tensor, task: Task) -> dict[str, ScoreHistogram] | None:
    """The inverse of `packed_histograms`; None if the bytes are not three histograms of this task."""
    like = ScoreHistogram.zeros((task.labels, task.groups), task.favourable)
    shape = (len(PARTS), *like.counts.movedim(0, -1).shape)
    size = len(PARTS) * like.counts.numel() * _COUNT.itemsize
    if content.dtype != torch.uint8:
        return None
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(content.numpy().tobytes(), size + 1)  # however much they would inflate to
    except zlib.error:
        return None
    if len(found) != size or not inflating.eof or inflating.unused_data:
        return None
    by_place = np.frombuffer(found, np.uint8).reshape(_COUNT.itemsize, -1)
    counts = np.ascontiguousarray(by_place.T).view(_COUNT).astype(np.int64).reshape(shape)
    return {
        part: replace(like, counts=torch.from_numpy(own).movedim(-1, 0).contiguous(), excluded=task.excluded)
        for part, own in zip(PARTS, counts, strict=True)
    }
