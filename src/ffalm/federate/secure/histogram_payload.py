"""Score histograms in the sum of the last scoring, for a federation with a fairness target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.histogram_bytes import PARTS
from ffalm.federate.secure.fixed_point import Record, VectorLayout
from ffalm.federate.secure.payload import Numbers

_BITS = 32


def with_histograms(layout: VectorLayout, task: Task) -> VectorLayout:
    """The layout with a count for each bin of every part, as large as the sites together can sum."""
    shape = tuple(ScoreHistogram.zeros((task.labels, task.groups), task.favourable).counts.shape)
    most = float((2 ** (_BITS - 1) - 1) // layout.sites)
    added = [Record(_name(part), shape, most, "largest number of rows", _BITS, whole=True) for part in PARTS.values()]
    return replace(layout, records=[*layout.records, *added])


def histogram_numbers(told: Mapping[str, Disclosed]) -> Numbers:
    """A site's own counts."""
    return {
        _name(part): one.histogram.counts.double().numpy() for part, one in told.items() if one.histogram is not None
    }


def read_histograms(sums: Mapping[str, NDArray[np.float64]], task: Task) -> dict[str, ScoreHistogram]:
    """The summed histograms by part; their counts are exact."""
    counts = {part: torch.from_numpy(sums[_name(sent)]).round().long() for part, sent in PARTS.items()}
    return {part: ScoreHistogram(summed, task.favourable, excluded=task.excluded) for part, summed in counts.items()}


def _name(part: str) -> str:
    return f"score histogram of the {part} rows"
