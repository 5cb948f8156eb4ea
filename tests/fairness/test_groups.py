"""Group means of a batch, and their gradients."""

from __future__ import annotations

import pytest
import torch

from ffalm.fairness import group_means, masked_mean
from ffalm.fairness.groups import equal_weights

LOSSES = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])
ALL = torch.ones(4, dtype=torch.bool)


def test_the_worked_batch_has_the_worked_means() -> None:
    means, present = group_means(LOSSES, GROUPS, ALL, 2)
    assert means.tolist() == pytest.approx([0.3, 0.8])
    assert present.all()
    assert float(masked_mean(LOSSES, ALL)) == pytest.approx(0.55)


def test_masked_rows_count_nowhere() -> None:
    mask = torch.tensor([True, False, True, True])
    means, _ = group_means(LOSSES, GROUPS, mask, 2)
    assert means.tolist() == pytest.approx([0.2, 0.8])
    assert float(masked_mean(LOSSES, mask)) == pytest.approx(0.6)


def test_a_mean_over_no_rows_is_0_and_over_one_row_is_that_row() -> None:
    nobody, one = torch.zeros(4, dtype=torch.bool), torch.tensor([False, True, False, False])
    assert float(masked_mean(LOSSES, nobody)) == 0
    assert float(masked_mean(LOSSES, one)) == 0.4
    assert equal_weights(nobody, torch.float64).tolist() == [0, 0, 0, 0]
    assert equal_weights(one, torch.float64).tolist() == [0, 1, 0, 0]
    assert group_means(LOSSES, GROUPS, one, 2)[0].tolist() == [0.4, 0]


@pytest.mark.parametrize("only", [0, 1])
def test_a_batch_of_one_group_has_finite_gradients(only: int) -> None:
    losses = LOSSES.clone().requires_grad_()
    means, present = group_means(losses, torch.full((4,), only), ALL, 2)
    assert present.tolist() == [only == 0, only == 1]
    (gradient,) = torch.autograd.grad(means.sum(), losses)
    assert gradient.tolist() == [0.25] * 4


def test_an_absent_group_has_mean_0_and_is_marked_absent() -> None:
    means, present = group_means(LOSSES, GROUPS, ALL, 3)
    assert means.isfinite().all()
    assert present.tolist() == [True, True, False]


def test_leading_axes_are_many_batches_at_once() -> None:
    draws = torch.Generator().manual_seed(0)
    losses = torch.rand(3, 5, 12, generator=draws, dtype=torch.float64)
    groups = torch.randint(2, (3, 5, 12), generator=draws)
    mask = torch.rand(3, 5, 12, generator=draws) < 0.8
    means, _ = group_means(losses, groups, mask, 2)
    for seed in range(3):
        for client in range(5):
            kept = mask[seed, client]
            alone, group = losses[seed, client][kept], groups[seed, client][kept]
            expected = [float(alone[group == one].mean()) for one in (0, 1)]
            assert means[seed, client].tolist() == pytest.approx(expected)
