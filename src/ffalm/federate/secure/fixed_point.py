"""Numbers as whole numbers modulo a power of two, laid out in words that can be masked and summed.

A record's bound is agreed beforehand and checked before anything is masked. Its step is chosen so that one value
of each site, all within the bound, cannot overflow. So a sum is right or there is none: it never wraps silently.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import UserError, require

Words = dict[str, NDArray[Any]]
"""Unsigned words by width: "32" and "64". Adding them is adding modulo 2^32 and 2^64."""

Values = Mapping[str, NDArray[np.float64]]

_TYPES: dict[int, Any] = {32: np.uint32, 64: np.uint64}
_SIGNED: dict[int, Any] = {32: np.int32, 64: np.int64}


class OutOfRange(UserError):
    """A value that cannot be summed as agreed."""


@dataclass(frozen=True)
class Record:
    """Numbers under one bound. Whole numbers are exact; others are rounded to the layout's step."""

    name: str
    shape: tuple[int, ...]
    bound: float
    setting: str  # the name of the bound in messages
    bits: int = 64
    whole: bool = False
    weighted: bool = False  # whether a site multiplies it by its weight, which is at most 1

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class VectorLayout:
    """The numbers that are summed, and the most sites that may add theirs.

    Words are in the order of the records' names, since tensors arrive in any order.
    """

    records: Sequence[Record]
    sites: int

    @property
    def ordered(self) -> list[Record]:
        """The records in the order of their words."""
        return sorted(self.records, key=lambda record: record.name)

    @property
    def key(self) -> str:
        """A fingerprint of this layout: words of two different layouts must never be added."""
        return hashlib.sha256(repr((self.ordered, self.sites)).encode()).hexdigest()[:16]

    def step(self, record: Record) -> float:
        """The rounding step, a power of two: scaling by it loses nothing."""
        most = (2 ** (record.bits - 1) - 1) // self.sites  # units of one site, so that the sum fits
        exponent = 0 if record.whole else math.floor(math.log2(most / record.bound))
        if not record.whole and math.ldexp(record.bound, exponent) > most:
            exponent -= 1
        if record.bound > most * math.ldexp(1.0, -exponent):
            raise UserError(f"{record.bits} bits cannot hold {record.name} of {self.sites} sites.")
        return math.ldexp(1.0, -exponent)

    def words(self, values: Values, weight: float = 1.0) -> Words:
        """The values, checked and then weighted; raises `OutOfRange` with a sentence that names the record."""
        require(0 < weight <= 1, f"The weight of a site in a secure sum must be above 0 and at most 1; got {weight:g}.")
        parts: dict[str, list[NDArray[Any]]] = {str(bits): [] for bits in _TYPES}
        for record in self.ordered:
            parts[str(record.bits)].append(self._units(record, values[record.name], weight))
        return {str(bits): np.concatenate([np.empty(0, kind), *parts[str(bits)]]) for bits, kind in _TYPES.items()}

    def values(self, sums: Words) -> dict[str, NDArray[np.float64]]:
        """The numbers behind summed words."""
        places = dict.fromkeys(sums, 0)
        found = {}
        for record in self.ordered:
            width = str(record.bits)
            first = places[width]
            places[width] = first + record.size
            units = sums[width][first : places[width]].view(_SIGNED[record.bits])
            found[record.name] = (units.astype(np.float64) * self.step(record)).reshape(record.shape)
        return found

    def fits(self, words: Words) -> bool:
        """Whether words have this layout's form."""
        empty = self.empty()
        return words.keys() == empty.keys() and all(
            words[name].shape == like.shape and words[name].dtype == like.dtype for name, like in empty.items()
        )

    def empty(self) -> Words:
        """Zeros of this layout: what adding starts from."""
        sizes = {bits: sum(record.size for record in self.records if record.bits == bits) for bits in _TYPES}
        return {str(bits): np.zeros(size, _TYPES[bits]) for bits, size in sizes.items()}

    def _units(self, record: Record, value: NDArray[np.float64], weight: float) -> NDArray[Any]:
        largest = float(np.abs(value).max(initial=0.0))
        if not math.isfinite(largest):
            public = f"its {record.name} is no longer finite"
            raise OutOfRange(public, public)
        if largest > record.bound:
            public = f"its {record.name} is beyond the agreed {record.setting} of {record.bound:g}"
            raise OutOfRange(f"{public}: it reaches {largest:.4g}", public)
        scale = (weight if record.weighted else 1.0) / self.step(record)
        units = np.rint(value.reshape(-1) * scale).astype(np.int64)
        return units.astype(_TYPES[record.bits])


def added(first: Words, second: Words) -> Words:
    """The sum, modulo the width of the words."""
    return {name: first[name] + second[name] for name in first}
