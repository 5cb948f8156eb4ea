"""Group means of a batch's losses: what fair objectives are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def masked_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows of the last axis that the mask keeps; 0 if it keeps none."""
    kept = mask.to(losses.dtype)
    return (losses * kept).sum(-1) / kept.sum(-1).clamp(min=1)


def equal_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The derivative of `masked_mean` by each row's loss."""
    kept = mask.to(dtype)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1)


def group_means(losses: Tensor, groups: Tensor, mask: Tensor, group_count: int) -> tuple[Tensor, Tensor]:
    """Mean loss of each group and whether the batch holds the group at all, both of shape (..., group).

    An absent group has mean 0, never NaN: 0 * NaN would poison gradients, so callers look at the second value.
    """
    import torch

    member = (groups.unsqueeze(-1) == torch.arange(group_count, device=groups.device)) & mask.bool().unsqueeze(-1)
    kept = member.to(losses.dtype)
    sizes = kept.sum(-2)
    return (losses.unsqueeze(-1) * kept).sum(-2) / sizes.clamp(min=1), sizes > 0
