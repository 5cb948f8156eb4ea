"""Sources of noise, chosen explicitly: noise that makes a simulation repeatable protects nobody in a federation."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ffalm.randomness import Purpose, generator


class Noise(Protocol):
    """A source of standard normal numbers."""

    def normal(self, purpose: Purpose, round: int, size: int, client: int = 0) -> Tensor:
        """`size` of them, in float64, for one use in one round."""
        ...


@dataclass(frozen=True)
class KeyedNoise:
    """The noise of simulations: a function of the seed, so that a run can be repeated and resumed bit by bit.

    Whoever knows the seed can subtract it: it shows what privacy costs, and protects nobody.
    """

    seed: int

    def normal(self, purpose: Purpose, round: int, size: int, client: int = 0) -> Tensor:
        """The numbers of this seed, purpose, round and client."""
        return torch.from_numpy(generator(self.seed, purpose, round, client).standard_normal(size))


@dataclass(frozen=True)
class SystemNoise:
    """The noise of real federations, from the operating system's entropy: never repeated, and unpredictable."""

    def normal(self, purpose: Purpose, round: int, size: int, client: int = 0) -> Tensor:
        """Fresh numbers, by the transform of Box and Muller from bits that a cipher makes."""
        return normal_from(os.urandom(bytes_for(size)), size)


def bytes_for(size: int) -> int:
    """How many random bytes `normal_from` needs for so many numbers."""
    return 16 * -(-size // 2)


def normal_from(random: bytes, size: int) -> Tensor:
    """Standard normal numbers from random bytes, by the transform of Box and Muller."""
    bits = np.frombuffer(random, dtype=np.uint64) >> np.uint64(11)
    first, second = ((bits + 0.5) / 2.0**53).reshape(2, len(bits) // 2)
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * math.pi * second
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size])
