"""Score histograms in the sum of the last scoring, for a federation with a fairness target.

Masked words are uniformly random, so no code shortens them. Instead each word holds as many counts as fit beside one
another without a carry: a sum over all sites is at most the number of rows, whose bits both ends know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.histogram_bytes import PARTS
from ffalm.federate.secure.fixed_point import OutOfRange, Record, VectorLayout
from ffalm.federate.secure.payload import Numbers

_BITS = 32
MOST_BITS = _BITS - 1


def count_bits(told: Iterable[Mapping[str, torch.Tensor]]) -> int:
    """The bits that hold the number of rows of any part, from each site's agreed counts by part."""
    agreed = list(told)
    rows = max(sum(int(one[part].sum()) for one in agreed) for part in PARTS.values())
    return min(max(1, rows.bit_length()), MOST_BITS)


def with_histograms(layout: VectorLayout, task: Task, bits: int) -> VectorLayout:
    """The layout with the counts of every part, of so many bits each."""
    size = -(-_counts(task) // _in_a_word(layout.sites, bits))
    most = float((2**MOST_BITS - 1) // layout.sites)
    added = [Record(_name(part), (size,), most, "largest number of rows", _BITS, whole=True) for part in PARTS.values()]
    return replace(layout, records=[*layout.records, *added])


def histogram_numbers(told: Mapping[str, Disclosed], sites: int, bits: int) -> Numbers:
    """A site's own counts."""
    return {
        _name(part): _joined(one.histogram.counts.numpy(), sites, bits)
        for part, one in told.items()
        if one.histogram is not None
    }


def read_histograms(
    sums: Mapping[str, NDArray[np.float64]], task: Task, sites: int, bits: int
) -> dict[str, ScoreHistogram]:
    """The summed histograms by part; their counts are exact."""
    like = ScoreHistogram.zeros((task.labels, task.groups), task.favourable)
    found = {}
    for part, sent in PARTS.items():
        words = np.rint(sums[_name(sent)]).astype(np.int64)[:, None]
        several = _in_a_word(sites, bits)
        apart = words >> bits * np.arange(several) & 2**bits - 1 if several > 1 else words
        counts = torch.from_numpy(apart.reshape(-1)[: _counts(task)].copy()).view(like.counts.shape)
        found[part] = replace(like, counts=counts, excluded=task.excluded)
    return found


def _joined(counts: NDArray[np.int64], sites: int, bits: int) -> NDArray[np.float64]:
    """Counts beside one another in words."""
    several = _in_a_word(sites, bits)
    if several > 1 and int(counts.sum()) >> bits:
        public = f"its score histogram has more rows than the {bits} bits of the coordinator's question hold"
        raise OutOfRange(public, public)
    padded = np.pad(counts.reshape(-1), (0, -counts.size % several)).reshape(-1, several)
    words: NDArray[np.float64] = (padded << bits * np.arange(several)).sum(1).astype(np.float64)
    return words


def _in_a_word(sites: int, bits: int) -> int:
    """How many counts a word holds, such that the words of all sites together do not overflow."""
    return max(1, (MOST_BITS - (sites - 1).bit_length()) // bits)


def _counts(task: Task) -> int:
    return ScoreHistogram.zeros((task.labels, task.groups), task.favourable).counts.numel()


def _name(part: str) -> str:
    return f"score histogram of the {part} rows"
