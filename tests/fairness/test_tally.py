"""The Tally: counts and loss sums that add up exactly."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ffalm import metrics
from ffalm.errors import UserError
from ffalm.fairness import Tally

Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def random_rows(seed: int, rows: int, labels: int, groups: int) -> Rows:
    """(predictions, losses, labels, groups) without any structure."""
    draws = torch.Generator().manual_seed(seed)
    return (
        torch.randint(labels, (rows,), generator=draws),
        torch.rand(rows, generator=draws, dtype=torch.float64),
        torch.randint(labels, (rows,), generator=draws),
        torch.randint(groups, (rows,), generator=draws),
    )


def test_counts_and_sums_are_those_of_a_loop_over_the_rows() -> None:
    predictions, losses, labels, groups = random_rows(0, 200, 3, 4)
    tally = Tally.of(predictions, losses, labels, groups, (3, 4))
    confusion, loss = np.zeros((3, 3, 4), dtype=int), np.zeros((3, 4))
    for p, l, y, s in zip(predictions, losses, labels, groups, strict=True):  # noqa: E741
        confusion[int(p), int(y), int(s)] += 1
        loss[int(y), int(s)] += float(l)
    assert np.array_equal(tally.confusion.numpy(), confusion)
    assert tally.confusion.dtype == torch.int64
    np.testing.assert_allclose(tally.loss.numpy(), loss, rtol=1e-13)
    assert np.array_equal(tally.count.numpy(), confusion.sum(0))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_the_tally_of_a_union_is_the_sum_however_the_rows_are_split(seed: int, cuts: list[int]) -> None:
    rows = random_rows(seed, 60, 2, 3)
    whole = Tally.of(*rows, (2, 3))
    edges = [0, *sorted(cuts), 60]
    total = Tally.zeros((2, 3))
    for low, high in pairwise(edges):
        predictions, losses, labels, groups = (values[low:high] for values in rows)
        total = total + Tally.of(predictions, losses, labels, groups, (2, 3))
    assert torch.equal(total.confusion, whole.confusion)
    torch.testing.assert_close(total.loss, whole.loss, rtol=1e-13, atol=1e-13)
    found = total.metrics()
    for name, value in whole.metrics().items():
        assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def test_pooling_the_clients_gives_the_tally_of_their_concatenated_rows() -> None:
    clients = [random_rows(seed, rows, 2, 2) for seed, rows in ((1, 30), (2, 7), (3, 90))]
    stacked = Tally.stack([Tally.of(*rows, (2, 2)) for rows in clients])
    together = [torch.cat(parts) for parts in zip(*clients, strict=True)]
    whole = Tally.of(together[0], together[1], together[2], together[3], (2, 2))
    assert torch.equal(stacked.pooled().confusion, whole.confusion)
    torch.testing.assert_close(stacked.pooled().loss, whole.loss)


def test_leading_axes_are_many_tallies_at_once() -> None:
    many = [random_rows(seed, 20, 2, 2) for seed in range(6)]
    predictions, losses, labels, groups = (torch.stack(v).view(2, 3, 20) for v in zip(*many, strict=True))
    tally = Tally.of(predictions, losses, labels, groups, (2, 2))
    for seed in range(2):
        for client in range(3):
            alone = Tally.of(*many[seed * 3 + client], (2, 2))
            assert torch.equal(tally[seed, client].confusion, alone.confusion)
            torch.testing.assert_close(tally[seed, client].loss, alone.loss)
    assert tally.pooled().confusion.shape == (2, 2, 2, 2)


def test_the_metrics_of_each_are_those_of_each_alone() -> None:
    many = [Tally.of(*random_rows(seed, 5, 3, 2), (3, 2)) for seed in range(6)]
    for found, tally in zip(Tally.stack(many).metrics_of_each(2), many, strict=True):
        assert found == pytest.approx(tally.metrics(2), rel=1e-12, nan_ok=True)


def test_masked_rows_are_left_out() -> None:
    predictions, losses, labels, groups = random_rows(5, 50, 2, 2)
    kept = torch.arange(50) % 3 != 0
    masked = Tally.of(predictions, losses, labels, groups, (2, 2), mask=kept)
    alone = Tally.of(predictions[kept], losses[kept], labels[kept], groups[kept], (2, 2))
    assert torch.equal(masked.confusion, alone.confusion)
    torch.testing.assert_close(masked.loss, alone.loss)


def test_group_losses_are_the_means_by_group_and_nan_for_an_absent_one() -> None:
    losses = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
    groups, labels = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    tally = Tally.of(labels, losses, labels, groups, (2, 3))
    assert tally.group_losses()[:2].tolist() == pytest.approx([0.3, 0.8])
    assert math.isnan(float(tally.group_losses()[2]))
    assert float(tally.mean_loss()) == pytest.approx(0.55)


def test_losses_are_summed_in_float64() -> None:
    """A million float32 losses of 0.1 summed in float32 would be off in the third digit."""
    rows = 1_000_000
    zeros = torch.zeros(rows, dtype=torch.int64)
    tally = Tally.of(zeros, torch.full((rows,), 0.1), zeros, zeros, (2, 2))
    assert tally.loss.dtype == torch.float64
    assert float(tally.loss[0, 0]) == pytest.approx(rows * float(np.float32(0.1)), rel=1e-12)


def test_a_tally_takes_no_part_in_the_gradient() -> None:
    losses = torch.ones(2, requires_grad=True)
    codes = torch.tensor([0, 1])
    assert not Tally.of(codes, losses, codes, codes, (2, 2)).loss.requires_grad


def test_predictions_made_elsewhere_are_tallied_from_lists_arrays_or_tensors() -> None:
    y, p, s = [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1]
    from_lists = metrics.tally(y, p, s)
    for kind in (np.array, torch.tensor, lambda v: np.array(v, dtype=bool), lambda v: np.array(v, dtype=float)):
        assert torch.equal(metrics.tally(kind(y), kind(p), kind(s)).confusion, from_lists.confusion)
    assert from_lists.accuracy() == 0.75


def test_without_losses_nothing_about_losses_looks_like_a_number() -> None:
    tally = metrics.tally([0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1])
    assert math.isnan(tally.loss_gap())
    assert math.isnan(tally.metrics()["loss"])
    with_losses = metrics.tally([0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], losses=[0.2, 0.4, 0.6, 1.0])
    assert with_losses.loss_gap() == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("y", "predictions", "groups"),
    [
        ([], [], []),
        ([0, 1], [0, 1, 1], [0, 1, 1]),
        ([0, 1], [0, 1], [0]),
        ([0, -1], [0, 1], [0, 1]),
        ([0, 1], [0.3, 0.8], [0, 1]),
        ([0, 1], [0, 1], [0.5, 1]),
        ([0, math.nan], [0, 1], [0, 1]),
        (["no", "yes"], [0, 1], [0, 1]),
    ],
)
def test_rows_that_cannot_be_tallied_are_refused_in_one_sentence(
    y: list[object], predictions: list[object], groups: list[object]
) -> None:
    with pytest.raises(UserError) as refusal:
        metrics.tally(y, predictions, groups)
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


def test_every_row_needs_its_loss() -> None:
    with pytest.raises(UserError, match="one loss per row"):
        metrics.tally([0, 1], [0, 1], [0, 1], losses=[0.3])


@pytest.mark.parametrize("wrong", ["yes", 1.5, None, -1, 2])
def test_a_favourable_label_that_the_tally_does_not_have_is_refused(wrong: Any) -> None:
    counted = metrics.tally([0, 1, 1], [0, 1, 0], [0, 1, 1])
    with pytest.raises(UserError, match="favourable label must be a whole number from 0 to 1"):
        counted.metrics(wrong)
    with pytest.raises(UserError, match="favourable label"):
        counted.interval("dpd", favourable=wrong)


def test_many_rows_of_many_cells_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(0)
    labels, predictions, groups = (torch.randint(0, top, (2, 50), generator=draws) for top in (2, 2, 5))
    losses, mask = torch.rand(2, 50, generator=draws), torch.rand(2, 50, generator=draws) > 0.3
    whole = Tally.of(predictions, losses, labels, groups, (2, 5), mask)
    monkeypatch.setattr(sys.modules[Tally.__module__], "_MOST_MEMBERS", 70)
    pieces = Tally.of(predictions, losses, labels, groups, (2, 5), mask)
    assert torch.equal(pieces.confusion, whole.confusion)
    torch.testing.assert_close(pieces.loss, whole.loss, rtol=1e-12, atol=0)


def test_true_is_the_label_1() -> None:
    counted = metrics.tally([0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1], losses=[1, 2, 3, 4])
    assert counted.metrics(True) == counted.metrics(1)


@pytest.mark.parametrize(
    "joined",
    [
        lambda one: one + metrics.tally([0, 1], [0, 1], [0, 2]),
        lambda one: Tally.stack([one, metrics.tally([0, 2], [0, 1], [0, 1])]),
        lambda one: Tally.stack([]),
        lambda one: one.pooled(),
        lambda one: one.metrics_of_each(),
        lambda one: one.excluding(3),
        lambda one: Tally.of_counts([[[1, 2], [3, 4]]] * 3),
        lambda one: Tally.of_counts("x"),
        lambda one: Tally(one.confusion, one.loss[0]),
        lambda one: one.rows_needed(level="x"),
        lambda one: one.rows_needed(favourable=-1),
        lambda one: one.by_group(favourable=7),
        lambda one: one.by_group(names=3),
        lambda one: one.to(-1),
        lambda one: one.zeros(3),
    ],
)
def test_tallies_of_other_shapes_are_refused(joined: Any) -> None:
    with pytest.raises(UserError):
        joined(metrics.tally([0, 1], [0, 1], [0, 1]))


METHODS = sorted(name for name in {*vars(Tally)} - {"of", "of_counts", "zeros", "excluded"} if not name.startswith("_"))
CALLS: dict[str, Any] = {
    "stack": lambda one: Tally.stack([one, one]),
    "pooled": lambda one: Tally.stack([one, one]).pooled(),
    "metrics_of_each": lambda one: Tally.stack([one, one]).metrics_of_each(2),
    "to": lambda one: one.to("cpu"),
    "excluding": lambda one: one.excluding(0),
    "interval": lambda one: [one.interval(metric, 0.9, 2) for metric in ("accuracy", "dpd", "equalized_odds")],
    "count": lambda one: one.count,
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_counts_that_were_read_from_a_file(name: str) -> None:
    """Such counts are numpy arrays: each public method must give what it gives for tensors."""
    predictions, losses, labels, groups = random_rows(3, 300, 3, 3)
    made = Tally.of(predictions, (8 * losses).round() / 8, labels, groups, (3, 3)).excluding(1)  # sums are exact
    stored = Tally(made.confusion.numpy(), made.loss.numpy(), 1)  # type: ignore[arg-type]
    call = CALLS.get(name, lambda one: getattr(one, name)())
    own, expected = call(stored), call(made)
    if isinstance(expected, Tally):
        assert own.excluded == expected.excluded
        own, expected = ([one.confusion.tolist(), one.loss.tolist()] for one in (own, expected))
    own, expected = (one.tolist() if hasattr(one, "tolist") else str(one) for one in (own, expected))
    np.testing.assert_equal(own, expected)
