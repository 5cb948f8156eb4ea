"""Metrics against hand-worked numbers and against fairlearn."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    demographic_parity_ratio,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import precision_score

from ffalm import metrics
from ffalm.fairness import Tally, undefined
from ffalm.fairness.group_metrics import joint_dpd, joint_eod, signed_dpd, signed_eod

Codes = NDArray[np.int64]

#: CelebA's test list, Attractive by Male: rows per (label, group).
CELEBA_TEST = [[4263, 5801], [7984, 1914]]


def perfect(counts: list[list[int]]) -> Tally:
    """The Tally of a classifier that is always right on this many rows per (label, group)."""
    confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
    for label in range(2):
        confusion[label, label] = torch.tensor(counts[label])
    return Tally(confusion, torch.zeros(2, 2, dtype=torch.float64))


def every_cell(seed: int, rows: int, groups: int) -> tuple[Codes, Codes, Codes]:
    """Random labels, predictions and groups in which every group has both labels."""
    draws = np.random.default_rng(seed)
    y = np.concatenate([np.tile([0, 1], groups), draws.integers(0, 2, rows)])
    s = np.concatenate([np.repeat(np.arange(groups), 2), draws.integers(0, groups, rows)])
    return y, draws.integers(0, 2, len(y)), s


def share_right(y_true: Codes, y_pred: Codes) -> float:
    return float(np.mean(np.asarray(y_true) == np.asarray(y_pred)))


def test_four_of_ten_against_nine_of_thirty() -> None:
    prediction = [1] * 4 + [0] * 6 + [1] * 9 + [0] * 21
    tally = metrics.tally([0, 1] * 20, prediction, [0] * 10 + [1] * 30)
    assert tally.dpd() == pytest.approx(0.10, abs=1e-15)
    assert float(joint_dpd(tally)) == pytest.approx(0.125, abs=1e-15)
    assert float(signed_dpd(tally)) == pytest.approx(0.10, abs=1e-15)


def test_a_perfect_classifier_on_celeba_tells_the_conditional_form_from_the_joint_one() -> None:
    tally = perfect(CELEBA_TEST)
    assert round(100 * tally.dpd(), 2) == 40.38
    assert tally.eod() == 0
    assert round(100 * float(joint_dpd(tally)), 2) == 30.41
    assert round(100 * float(joint_eod(tally)), 2) == 61.33
    assert tally.accuracy() == 1


@pytest.mark.parametrize(
    ("counts", "gap"),
    [([[29920, 49247], [64589, 19014]], 0.4049), ([[3728, 5807], [7681, 2651]], 0.3598), (CELEBA_TEST, 0.4038)],
)
def test_a_perfect_classifier_has_the_base_rate_gap_and_no_eod(counts: list[list[int]], gap: float) -> None:
    tally = perfect(counts)
    assert tally.dpd() == pytest.approx(gap, abs=5e-5)
    assert tally.eod() == 0
    assert tally.equalized_odds() == 0
    assert tally.accuracy_parity() == 0


@pytest.mark.parametrize("always", [0, 1])
def test_a_constant_classifier_has_no_gaps(always: int) -> None:
    y, _, s = every_cell(0, 60, 3)
    tally = metrics.tally(y, np.full_like(y, always), s)
    assert (tally.dpd(), tally.eod(), tally.equalized_odds()) == (0, 0, 0)
    assert tally.accuracy() == pytest.approx(float((y == always).mean()))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 150), groups=st.integers(2, 5))
def test_fairlearn_agrees(seed: int, rows: int, groups: int) -> None:
    y, prediction, s = every_cell(seed, rows, groups)
    tally = metrics.tally(y, prediction, s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = MetricFrame(metrics=share_right, y_true=y, y_pred=prediction, sensitive_features=s)
        expected = {
            "dpd": demographic_parity_difference(y, prediction, sensitive_features=s),
            "eod": equal_opportunity_difference(y, prediction, sensitive_features=s),
            "equalized_odds": equalized_odds_difference(y, prediction, sensitive_features=s),
            "accuracy": frame.overall,
            "accuracy_parity": frame.difference(),
            "worst_group_accuracy": frame.group_min(),
        }
    found = tally.metrics()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    methods = (tally.dpd, tally.eod, tally.equalized_odds, tally.accuracy_parity, tally.worst_group_accuracy)
    assert [method() for method in methods] == [found[method.__name__] for method in methods]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), groups=st.integers(2, 4))
def test_renaming_groups_changes_no_metric(seed: int, groups: int) -> None:
    y, prediction, s = every_cell(seed, 50, groups)
    new = np.random.default_rng(seed + 1).permutation(groups)
    before, after = (metrics.tally(y, prediction, names).metrics() for names in (s, new[s]))
    for name in ("accuracy", "dpd", "eod", "equalized_odds", "accuracy_parity", "worst_group_accuracy", "joint_dpd"):
        assert before[name] == after[name], name


def test_swapping_two_groups_negates_the_signed_gaps() -> None:
    y, prediction, s = every_cell(3, 60, 2)
    losses = np.linspace(0.1, 2, len(y))
    one, other = metrics.tally(y, prediction, s, losses), metrics.tally(y, prediction, 1 - s, losses)
    assert float(signed_dpd(one)) == -float(signed_dpd(other)) != 0
    assert float(signed_eod(one)) == -float(signed_eod(other)) != 0
    assert one.loss_gap() == pytest.approx(-other.loss_gap())


def test_the_loss_gap_is_group_0_minus_group_1() -> None:
    tally = metrics.tally([0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], losses=[0.2, 0.4, 0.6, 1.0])
    assert tally.loss_gap() == pytest.approx(-0.5)


def test_the_loss_gap_of_three_groups_is_the_largest_minus_the_smallest() -> None:
    tally = metrics.tally([0, 1, 0], [0, 1, 0], [0, 1, 2], losses=[0.2, 0.9, 0.4])
    assert tally.loss_gap() == pytest.approx(0.7)


def test_an_empty_group_makes_gaps_undefined_and_never_zero() -> None:
    confusion = torch.zeros(2, 2, 2, dtype=torch.int64)
    confusion[0, 0, 0], confusion[1, 1, 0] = 5, 5
    tally = Tally(confusion, torch.zeros(2, 2, dtype=torch.float64))
    for name in ("dpd", "eod", "equalized_odds", "accuracy_parity", "worst_group_accuracy", "loss_gap"):
        assert math.isnan(tally.metrics()[name]), name
    assert tally.accuracy() == 1


def test_a_group_without_favourable_labels_leaves_only_the_opportunity_metrics_undefined() -> None:
    tally = metrics.tally([0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1])
    assert tally.dpd() == 1
    assert math.isnan(tally.eod())
    assert math.isnan(tally.equalized_odds())


def test_no_rows_at_all_leave_everything_undefined() -> None:
    assert all(math.isnan(value) for value in Tally.zeros((2, 2)).metrics().values())


def test_the_favourable_label_may_be_any() -> None:
    y, prediction, s = every_cell(8, 70, 2)
    flipped = metrics.tally(1 - y, 1 - prediction, s)
    tally = metrics.tally(y, prediction, s)
    assert tally.dpd(favourable=0) == pytest.approx(flipped.dpd(favourable=1))
    assert tally.eod(favourable=0) == pytest.approx(flipped.eod(favourable=1))
    assert tally.eod(favourable=0) != tally.eod(favourable=1)


#: Predictions of three labels (down) for each true label (across), of three groups.
THREE_BY_THREE = torch.tensor(
    [
        [[4, 2, 0], [1, 5, 2], [0, 3, 3]],  # group 0: 20 rows
        [[3, 1, 1], [1, 2, 0], [1, 0, 1]],  # group 1: 10 rows
        [[8, 0, 4], [1, 4, 0], [1, 1, 6]],  # group 2: 25 rows
    ]
).permute(1, 2, 0)


def test_three_labels_in_three_groups_by_hand() -> None:
    tally = Tally(THREE_BY_THREE, torch.zeros(3, 3, dtype=torch.float64))
    assert tally.count.tolist() == [[5, 5, 10], [10, 3, 5], [5, 2, 10]]
    assert tally.accuracy() == pytest.approx((12 + 6 + 18) / 55)
    # Predicted label 2: 6 of 20, 2 of 10, 8 of 25; predicted right: 12 of 20, 6 of 10, 18 of 25.
    assert tally.dpd(favourable=2) == pytest.approx(8 / 25 - 2 / 10)
    assert tally.accuracy_parity() == pytest.approx(18 / 25 - 6 / 10)
    assert tally.worst_group_accuracy() == pytest.approx(6 / 10)
    # Among rows with label 2: 3 of 5, 1 of 2, 6 of 10.
    assert tally.eod(favourable=2) == pytest.approx(6 / 10 - 1 / 2)
    # Among label 0: 0 of 5, 1 of 5, 1 of 10; among label 1: 3 of 10, 0 of 3, 1 of 5.
    assert tally.equalized_odds(favourable=2) == pytest.approx(max(1 / 5, 3 / 10, 1 / 10))
    # Another favourable label: predicted label 0 in 6 of 20, 5 of 10 and 12 of 25 rows.
    assert tally.dpd(favourable=0) == pytest.approx(5 / 10 - 6 / 20)
    assert tally.eod(favourable=0) == pytest.approx(4 / 5 - 3 / 5)
    assert tally.metrics(2)["joint_dpd"] == pytest.approx((8 - 2) / 55)
    assert tally.metrics(2)["joint_eod"] == pytest.approx((6 - 1) / 17)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), labels=st.integers(3, 5), groups=st.integers(2, 4), data=st.data())
def test_fairlearn_agrees_on_the_favourable_label_against_all_others(
    seed: int, labels: int, groups: int, data: st.DataObject
) -> None:
    favourable = data.draw(st.integers(0, labels - 1))
    draws = np.random.default_rng(seed)
    y = np.concatenate([np.tile(np.arange(labels), groups), draws.integers(0, labels, 80)])
    s = np.concatenate([np.repeat(np.arange(groups), labels), draws.integers(0, groups, 80)])
    prediction = draws.integers(0, labels, len(y))
    tally = metrics.tally(y, prediction, s)
    wanted, chosen = y == favourable, prediction == favourable
    assert tally.dpd(favourable) == pytest.approx(
        demographic_parity_difference(wanted, chosen, sensitive_features=s), abs=1e-12
    )
    assert tally.eod(favourable) == pytest.approx(
        equal_opportunity_difference(wanted, chosen, sensitive_features=s), abs=1e-12
    )
    by_label = [
        demographic_parity_difference(y[y == label], chosen[y == label], sensitive_features=s[y == label])
        for label in range(labels)
    ]
    assert tally.equalized_odds(favourable) == pytest.approx(max(by_label), abs=1e-12)


@pytest.mark.parametrize(("labels", "groups", "favourable"), [(2, 2, 1), (2, 3, 0), (4, 3, 2)])
def test_fairlearn_agrees_on_the_ratio_and_on_precision(labels: int, groups: int, favourable: int) -> None:
    draws = np.random.default_rng(labels)
    y, prediction, s = (draws.integers(0, count, 300) for count in (labels, labels, groups))
    wanted, chosen = y == favourable, prediction == favourable
    found = metrics.tally(y, prediction, s).metrics(favourable)
    ratio = demographic_parity_ratio(wanted, chosen, sensitive_features=s)
    assert found["impact_ratio"] == pytest.approx(ratio, abs=1e-12)
    frame = MetricFrame(metrics=precision_score, y_true=wanted, y_pred=chosen, sensitive_features=s)
    assert found["predictive_parity"] == pytest.approx(frame.difference(), abs=1e-12)


def test_every_empty_cell_is_named_in_a_sentence() -> None:
    tally = metrics.tally([0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1])
    (sentence,) = undefined(tally, ("refused", "hired"), ("men", "women"))
    assert "'women'" in sentence
    assert "'hired'" in sentence
    assert undefined(perfect(CELEBA_TEST), ("0", "1"), ("0", "1")) == []


def test_excluded_groups_count_for_accuracy_and_in_no_comparison() -> None:
    y, predicted, group = every_cell(0, 300, 4)
    losses = np.linspace(0, 1, len(y))
    whole = metrics.tally(y, predicted, group, losses).excluding(2)
    known = group < 2
    alone = metrics.tally(y[known], predicted[known], group[known], losses[known])
    found, expected = whole.metrics(), alone.metrics()
    assert found["accuracy"] == metrics.tally(y, predicted, group).accuracy()
    assert found["loss"] == pytest.approx(losses.mean())
    assert {name: found[name] for name in found if name not in ("accuracy", "loss")} == {
        name: expected[name] for name in found if name not in ("accuracy", "loss")
    }
    for name in ("dpd", "eod", "equalized_odds", "impact_ratio", "worst_group_accuracy", "predictive_parity"):
        assert whole.interval(name) == alone.interval(name)
    assert whole.interval("accuracy") != alone.interval("accuracy")
    assert (whole + whole).excluded == whole.to("cpu").excluded == whole.rounded().excluded == 2


def test_only_cells_of_compared_groups_are_said_to_be_empty() -> None:
    counts = metrics.tally([0, 1, 0, 1, 0], [0, 1, 1, 0, 1], [0, 0, 1, 1, 2])
    assert len(undefined(counts, ("no", "yes"), ("a", "b", "unknown"))) == 1
    assert undefined(counts.excluding(1), ("no", "yes"), ("a", "b", "unknown")) == []
