"""Score histograms on the wire: about a bit per row, so that they are small beside a round's models.

The counts of a (fallback, label, group) cell, bin by bin, rise and fall slowly, and most bins are empty. Of each cell
travel the first and the last bin with rows and, for the bins between them, an adaptive Rice code: with k from a running
mean of the counts before it, a count v is v >> k ones, a zero, and the lowest k bits of v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import BINS

PARTS = {"training": "train", "validation": "validation", "test": "test"}
"""The parts whose scores the answer to a target rests on, each with its name in agreed counts and messages."""

_PLACE = (BINS - 1).bit_length()
_COUNT = 32  # bits of a count that its Rice code would make long
_LONG = 20  # ones that announce such a count


def packed_histograms(parts: Mapping[str, ScoreHistogram]) -> Tensor:
    """The counts of all parts, by their names in messages, as bytes."""
    bits = "".join(_packed(cell) for part in PARTS.values() for cell in _cells(parts[part].counts).tolist())
    ended = bits + "1" + "0" * (-(len(bits) + 1) % 8)
    return torch.frombuffer(bytearray(int(ended, 2).to_bytes(len(ended) // 8, "big")), dtype=torch.uint8)


def unpacked_histograms(content: Tensor, task: Task) -> dict[str, ScoreHistogram] | None:
    """The histograms in such bytes, by part; None where they are not three of this task's."""
    like = ScoreHistogram.zeros((task.labels, task.groups), task.favourable)
    cells = _cells(like.counts).shape[0]
    longest = len(PARTS) * (like.counts.numel() * (_LONG + _COUNT) + cells * (1 + 2 * _PLACE)) // 8 + 1
    if content.dtype != torch.uint8 or not 0 < content.numel() <= longest:
        return None
    bits = _Bits(content.numpy().tobytes())
    try:
        found = {part: torch.tensor([_unpacked(bits) for _ in range(cells)]) for part in PARTS}
        bits.finish()
    except ValueError:
        return None
    shape = like.counts.movedim(0, -1).shape
    return {
        part: replace(like, counts=counts.view(shape).movedim(-1, 0).contiguous(), excluded=task.excluded)
        for part, counts in found.items()
    }


def _cells(counts: Tensor) -> Tensor:
    """A row of bins for each (fallback, label, group) cell."""
    return counts.movedim(0, -1).reshape(-1, BINS)


def _packed(counts: list[int]) -> str:
    """The bits of one cell."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return "0"
    first, last = filled[0], filled[-1]
    parts, mean = [f"1{first:0{_PLACE}b}{last:0{_PLACE}b}"], _START
    for count in counts[first : last + 1]:
        low = _low_bits(mean)
        ones = count >> low
        if ones < _LONG:
            parts.append("1" * ones + f"{count & ((1 << low) - 1):0{low + 1}b}")
        else:
            parts.append("1" * _LONG + f"{count:0{_COUNT}b}")
        mean = _moved(mean, count)
    return "".join(parts)


def _unpacked(bits: _Bits) -> list[int]:
    """The counts of one cell."""
    counts, mean = [0] * BINS, _START
    if bits.number(1):
        first, last = bits.number(_PLACE), bits.number(_PLACE)
        for place in range(first, last + 1):
            low, ones = _low_bits(mean), bits.ones()
            counts[place] = bits.number(_COUNT) if ones == _LONG else (ones << low) + bits.number(low + 1)
            mean = _moved(mean, counts[place])
    return counts


#: A running mean of counts is an integer, 64 times the mean, so that it is the same on every machine.
_START = 64


def _moved(mean: int, count: int) -> int:
    """The mean with one more count, which has a weight of a quarter."""
    return mean + 16 * count - mean // 4


def _low_bits(mean: int) -> int:
    """The k of the Rice code: about log2 of 0.7 times the mean, rounded up."""
    return (mean // 90).bit_length()


class _Bits:
    """Bytes read bit by bit; `ValueError` where they end too early or too late."""

    def __init__(self, content: bytes) -> None:
        self._text = f"{int.from_bytes(content, 'big'):0{8 * len(content)}b}"
        self._place, self._end = 0, self._text.rfind("1")

    def number(self, width: int) -> int:
        """The next bits as a number."""
        start, self._place = self._place, self._place + width
        if self._place > self._end:
            raise ValueError
        return int(self._text[start : self._place], 2)

    def ones(self) -> int:
        """How many ones come next, at most `_LONG`."""
        found = self._text.find("0", self._place, self._place + _LONG)
        count = _LONG if found < 0 else found - self._place
        self._place += count
        return count

    def finish(self) -> None:
        """Nothing but the mark of the end may be left."""
        if self._place != self._end or len(self._text) - self._end > 8:
            raise ValueError
