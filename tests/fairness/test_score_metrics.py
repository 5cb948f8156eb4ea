"""AUC and calibration by group, from histograms, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import bins_of, scores_of


def drawn(labels: int, groups: int, rows: int = 3000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits with labels drawn from their softmax, and groups."""
    torch.manual_seed(seed)
    logits = 1.5 * torch.randn(rows, labels, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
    return logits, y, torch.randint(0, groups, (rows,))


@pytest.mark.parametrize(("labels", "groups", "favourable"), [(2, 2, 1), (2, 3, 0), (4, 3, 2)])
def test_scikit_learn_agrees_on_auc(labels: int, groups: int, favourable: int) -> None:
    logits, y, group = drawn(labels, groups)
    score, fallback = scores_of(logits, favourable)
    histogram = ScoreHistogram.of(score, fallback, y, group, (labels, groups), favourable)
    truth = y == favourable
    assert histogram.auc() == pytest.approx(roc_auc_score(truth, bins_of(score)), abs=1e-12)
    assert histogram.auc() == pytest.approx(roc_auc_score(truth, score), abs=5e-4)
    for number, own in enumerate(histogram.group_auc().tolist()):
        mine = group == number
        assert own == pytest.approx(roc_auc_score(truth[mine], bins_of(score)[mine]), abs=1e-12)


def test_scikit_learn_agrees_on_calibration() -> None:
    logits, y, group = drawn(2, 3)
    score, fallback = scores_of(logits, 1)
    score = score + 0.4 * (group == 2)  # overconfident in one group
    histogram = ScoreHistogram.of(score, fallback, y, group, (2, 3), 1)
    found = histogram.calibration(bins=10)
    rounded = histogram.centres()[bins_of(score)].sigmoid()  # every row in the middle of its bin
    for number in range(3):
        mine = group == number
        observed, predicted = calibration_curve(y[mine], rounded[mine], n_bins=10)
        np.testing.assert_allclose(found.observed[:, number], observed, atol=1e-12)
        np.testing.assert_allclose(found.predicted[:, number], predicted, atol=1e-12)
        place = (score[mine].sigmoid() * 10).long().clamp(max=9)
        exact = sum(
            abs(float((y[mine][place == one] - score[mine].sigmoid()[place == one]).sum())) for one in range(10)
        )
        assert float(found.error[number]) == pytest.approx(exact / int(mine.sum()), abs=0.01)
    assert found.error[2] > 2 * found.error[0]
    assert found.rows.sum() == len(y)


def test_a_group_of_one_outcome_has_no_auc() -> None:
    score, y, group = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1])
    areas = ScoreHistogram.of(score, torch.zeros(3).long(), y, group, (2, 2), 1).group_auc()
    assert areas[0] == 1 and areas[1].isnan()


def test_the_score_of_many_labels_is_no_probability() -> None:
    with pytest.raises(UserError, match="more than two labels"):
        ScoreHistogram.zeros((3, 2), 1).calibration()
