"""Score histograms: they add up, and give the Tally of any thresholds exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ffalm.fairness import ScoreHistogram, tally
from ffalm.fairness.histograms import AS_TRAINED, BINS, bins_of, edge_of, edge_value, scores_of


def rows(labels: int, groups: int, count: int = 4000) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(labels * 10 + groups)
    logits = 3 * torch.randn(count, labels, generator=draws)
    y = torch.randint(0, labels, (count,), generator=draws)
    return logits, y, torch.randint(0, groups, (count,), generator=draws)


def histogram(logits: Tensor, y: Tensor, group: Tensor, groups: int, favourable: int) -> ScoreHistogram:
    shape = (logits.shape[-1], groups)
    return ScoreHistogram.of(*scores_of(logits, favourable), y, group, shape, favourable)


@pytest.mark.parametrize(("labels", "groups", "favourable"), [(2, 2, 1), (2, 3, 0), (4, 3, 2)])
def test_the_tally_of_thresholds_is_that_of_the_predictions(labels: int, groups: int, favourable: int) -> None:
    logits, y, group = rows(labels, groups)
    found = histogram(logits, y, group, groups, favourable)
    edges = [AS_TRAINED + 7 * (place - 1) for place in range(groups)]
    scores, fallback = scores_of(logits, favourable)
    reached = scores >= torch.tensor([edge_value(edge) for edge in edges])[group]
    predicted = torch.where(reached, favourable, fallback)
    expected = tally(y, predicted, group).confusion
    assert torch.equal(found.tally(edges).confusion, expected)
    assert found.correct()[edges, range(groups)].sum() == (predicted == y).sum()


@pytest.mark.parametrize(("labels", "favourable"), [(2, 1), (2, 0), (5, 3)])
def test_the_middle_edge_is_the_models_own_prediction(labels: int, favourable: int) -> None:
    logits, y, group = rows(labels, 2)
    own = tally(y, logits.argmax(-1), group)
    found = histogram(logits, y, group, 2, favourable).tally([AS_TRAINED] * 2)
    assert torch.equal(found.confusion, own.confusion)


def test_histograms_of_parts_add_up_to_that_of_the_whole() -> None:
    logits, y, group = rows(3, 2)
    parts = [slice(0, 1000), slice(1000, 1001), slice(1001, 4000)]
    whole = histogram(logits, y, group, 2, 1)
    total = ScoreHistogram.zeros((3, 2), 1)
    for part in parts:
        total = total + histogram(logits[part], y[part], group[part], 2, 1)
    assert torch.equal(total.counts, whole.counts)


def test_a_score_is_in_the_bin_of_the_edges_that_it_reaches() -> None:
    scores = torch.tensor([-100.0, -16.0, -1e-30, 0.0, 1e-30, 0.0625, 15.9999, 16.0, 100.0, torch.nan])
    expected = [sum(value >= edge_value(edge) for edge in range(1, BINS)) for value in scores[:-1].tolist()]
    assert bins_of(scores).tolist() == [*expected, 0]
    assert edge_value(0) == -torch.inf
    assert edge_value(BINS) == torch.inf


def test_mixed_thresholds_give_expected_counts() -> None:
    """Half at everybody, half at nobody: half of the rows of each cell are predicted favourable."""
    logits, y, group = rows(2, 2)
    found = histogram(logits, y, group, 2, 1)
    weights = torch.zeros(BINS + 1, 2)
    weights[0] = weights[-1] = 0.5
    mixed = found.mixed_tally(weights)
    assert torch.allclose(mixed.confusion[0], mixed.confusion[1])
    assert torch.allclose(mixed.count, found.tally([0, 0]).count.double())


@pytest.mark.parametrize(("labels", "groups", "favourable"), [(2, 2, 1), (2, 3, 0), (4, 3, 2)])
def test_counts_read_from_a_file_as_numpy_arrays_give_what_tensors_give(
    labels: int, groups: int, favourable: int
) -> None:
    logits, y, group = rows(labels, groups)
    found = histogram(logits, y, group, groups, favourable)
    found = replace(found + found, excluded=1 if groups > 2 else 0)
    stored = replace(found, counts=found.counts.numpy())  # type: ignore[arg-type]
    np.testing.assert_array_equal(stored.at_least(), found.at_least())
    np.testing.assert_array_equal(stored.compared().correct(), found.compared().correct())
    assert stored.auc() == found.auc()
    drawn = np.zeros((BINS + 1, groups))
    drawn[AS_TRAINED], drawn[BINS] = 0.25, 0.75
    for own, other in (
        (stored.tally([AS_TRAINED] * groups), found.tally([AS_TRAINED] * groups)),
        (stored.tally([BINS] * groups), found.tally([BINS] * groups)),  # nobody is selected: a ratio of 0 to 0
        (stored.mixed_tally(drawn), found.mixed_tally(drawn)),
    ):
        assert isinstance(own.confusion, np.ndarray)
        np.testing.assert_array_equal(own.confusion, other.confusion)
        assert own.metrics(favourable) == pytest.approx(other.metrics(favourable), rel=0, abs=0, nan_ok=True)
        for metric in own.metrics().keys() - {"loss", "loss_gap"}:
            assert own.interval(metric, 0.9, favourable) == pytest.approx(
                other.interval(metric, 0.9, favourable), rel=0, abs=0, nan_ok=True
            )


def test_edges_are_a_sixteenth_apart_from_minus_16_to_16_and_the_outer_bins_are_open() -> None:
    assert [edge_value(edge) for edge in (0, 1, 2, BINS - 1, BINS)] == [
        -math.inf,
        -16 + 1 / 16,
        -16 + 2 / 16,
        16 - 1 / 16,
        math.inf,
    ]
    scores = [-math.inf, math.nan, -99.0, -16.0, -16 + 1 / 16, 16 - 2 / 16, 16 - 1 / 16, 16.0, 99.0, math.inf]
    bins = [0, 0, 0, 0, 1, BINS - 2, BINS - 1, BINS - 1, BINS - 1, BINS - 1]
    assert bins_of(torch.tensor(scores)).tolist() == bins
    assert [edge_of(score) for score in scores if not math.isnan(score)] == [*bins[:1], *bins[2:]]


def test_a_sum_leaves_out_the_groups_that_either_part_leaves_out() -> None:
    one = ScoreHistogram.zeros((2, 3), 1)
    assert (one + replace(one, excluded=1)).excluded == (replace(one, excluded=1) + one).excluded == 1
    assert replace(one, excluded=1).compared().groups == 2


@pytest.mark.parametrize(("labels", "favourable"), [(2, 1), (4, 2)])
def test_the_histogram_of_no_rows_changes_no_sum(labels: int, favourable: int) -> None:
    logits, y, group = rows(labels, 3, 50)
    whole = histogram(logits, y, group, 3, favourable)
    assert torch.equal((ScoreHistogram.zeros((labels, 3), favourable) + whole).counts, whole.counts)
    assert ScoreHistogram.zeros((labels, 3), favourable).counts.shape == whole.counts.shape
