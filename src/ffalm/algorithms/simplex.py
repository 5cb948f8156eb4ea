"""Weights that are at least 0 and sum to 1."""

from __future__ import annotations

import torch
from torch import Tensor


def onto_simplex(values: Tensor) -> Tensor:
    """The nearest point, on the last axis, whose entries are at least 0 and sum to 1; an entry of -inf becomes 0.

    max(0, v - tau), with tau such that the sum is 1 (Held, Wolfe and Crowder, 1974).
    """
    largest = values.sort(-1, descending=True).values
    numbers = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    taus = (largest.cumsum(-1) - 1) / numbers
    kept = (largest > taus).sum(-1, keepdim=True).clamp(min=1)
    return (values - taus.gather(-1, kept - 1)).clamp(min=0)


def recounted_weights(weights: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Weights of clients once those marked `new` are known, with n_k / n, and those without rows are gone.

    The others share the rest as they did before.
    """
    shares = torch.where(new, rows / rows.sum(-1, keepdim=True), 0.0)
    there = (rows > 0) & ~new
    others = normalised(weights * there, rows * there).nan_to_num(0.0)  # NaN if all are new
    return shares + others * (1 - shares.sum(-1, keepdim=True))


def normalised(weights: Tensor, rows: Tensor) -> Tensor:
    """Weights that sum to 1; by size if every one of them is 0.

    Weights that sum to 1 already, up to rounding, keep their every bit: a step of 0 is FedAvg exactly.
    """
    total = weights.sum(-1, keepdim=True)
    by_size = rows / rows.sum(-1, keepdim=True)
    scaled = weights / total.clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.where(total > 0, torch.where((total - 1).abs() < 1e-12, weights, scaled), by_size)
