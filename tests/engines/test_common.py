"""What engines share about losses and slopes."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from ffalm.engines.common import raised_losses


def test_a_step_against_the_slopes_raises_the_losses_that_are_told() -> None:
    """Also where the row's own logit goes up: another label's may go up by more."""
    outputs = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slopes = torch.randn(500, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(500) % 4
    before, after = (cross_entropy(logits, labels, reduction="none") for logits in (outputs, outputs - 1e-7 * slopes))
    told = raised_losses(slopes, outputs, labels)
    assert torch.equal(told, after > before)
    assert not torch.equal(told, slopes.gather(1, labels.unsqueeze(1)).squeeze(1) > 0)


def test_the_slopes_of_the_loss_itself_raise_none_and_padding_never_does() -> None:
    outputs, labels = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 20, torch.arange(50) % 3
    own = outputs.softmax(-1) - torch.nn.functional.one_hot(labels, 3)
    assert not raised_losses(own, outputs, labels).any()
    assert not raised_losses(torch.zeros_like(outputs), outputs, labels).any()
