"""The weighted mean of what clients changed, each change bounded, with noise on the sum: one Gaussian mechanism.

It serves models and the server's state alike, both being tensors by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Named = Mapping[str, Tensor]


def noisy_mean(
    before: Named, after: Sequence[Named], weights: Sequence[float], clip: float, multiplier: float, draws: Tensor
) -> dict[str, Tensor]:
    """before + sum_i w_i clipped(after_i - before) + N(0, (multiplier * clip * max_i |w_i|)^2) on every number.

    Whatever one client answers moves the sum by at most 2 * clip * max_i |w_i|. Sums are kept in float64 and rounded
    to the entries' own type at the end, when the noise is in them. `draws` are as many standard normal numbers as
    `size_of` says. Only floating numbers are treated so; counters, which follow from sizes, take the largest value.
    """
    floats = [name for name, value in before.items() if value.is_floating_point()]
    scales = [weight * shrinkage(before, one, clip) for one, weight in zip(after, weights, strict=True)]
    spread = multiplier * clip * max(abs(weight) for weight in weights)
    pieces = iter(torch.split(draws, [before[name].numel() for name in floats]))
    mean: dict[str, Tensor] = {}
    for name, start in before.items():
        if name not in floats:
            mean[name] = torch.stack([one[name].to(start.device) for one in after]).amax(0)
            continue
        total = start.double() + spread * next(pieces).view(start.shape).to(start.device)
        for one, scale in zip(after, scales, strict=True):
            if scale != 0:  # a change that is not finite counts for nothing, and 0 * inf would not be nothing
                total += scale * (one[name].to(start.device).double() - start.double())
        mean[name] = total.to(start.dtype)
        if name.endswith("running_var"):  # of BatchNorm: noise may have made it negative, which no variance is
            mean[name] = mean[name].clamp(min=0)
    return mean


def size_of(before: Named) -> int:
    """How many floating numbers there are."""
    return sum(value.numel() for value in before.values() if value.is_floating_point())


def shrinkage(before: Named, after: Named, clip: float) -> float:
    """The factor that brings a change to the norm `clip`, 1 for a shorter one; 0 for one that is not finite.

    A client whose training diverged must not be seen by its absence any more than by its numbers, so it counts as one
    that changed nothing.
    """
    squares = [
        float((after[name].to(start.device).double() - start.double()).square().sum())
        for name, start in before.items()
        if start.is_floating_point()
    ]
    norm = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf
    if math.isinf(norm):
        return 0.0
    return min(1.0, clip / norm) if norm > 0 else 1.0
