"""Every fairness metric as a function of a Tally, over any leading axes.

With r_s = P(prediction favourable | group s) and tpr_s = P(prediction favourable | label favourable, group s), the
demographic parity difference (DPD) and the equal opportunity difference (EOD; not equalised odds) are

    DPD = max_s r_s - min_s r_s          EOD = max_s tpr_s - min_s tpr_s

for two groups |r_0 - r_1| and |tpr_0 - tpr_1|. With more than two labels one of them is favourable and all others are
not. Counts are summed first and divided once. A metric is NaN if a group lacks the rows it needs. Metrics that compare
groups leave out those that the Tally excludes; accuracy and mean loss are of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from ffalm.errors import require, short_repr
from ffalm.fairness.array_library import double, library

if TYPE_CHECKING:
    from torch import Tensor

    from ffalm.fairness.tally import Tally


def selection_rate(tally: Tally, favourable: int = 1) -> Tensor:
    """P(prediction favourable | group), one entry per group."""
    return _share(tally.confusion[..., label_of(tally, favourable), :, :].sum(-2), tally.count.sum(-2))


def favourable_rate(tally: Tally, favourable: int = 1) -> Tensor:
    """P(prediction favourable | label, group), of shape (..., label, group)."""
    return _share(tally.confusion[..., label_of(tally, favourable), :, :], tally.count)


def false_positive_rate(tally: Tally, favourable: int = 1) -> Tensor:
    """P(prediction favourable | label not favourable, group), one entry per group."""
    label = label_of(tally, favourable)
    chosen, count = tally.confusion[..., label, :, :], tally.count
    return _share(chosen.sum(-2) - chosen[..., label, :], count.sum(-2) - count[..., label, :])


def label_of(tally: Tally, favourable: int) -> int:
    """The favourable label, which must be one of the Tally's."""
    labels = tally.confusion.shape[-2]
    known = isinstance(favourable, Integral) and 0 <= int(favourable) < labels
    require(known, f"The favourable label must be a whole number from 0 to {labels - 1}; got {short_repr(favourable)}.")
    return int(favourable)


def group_accuracy(tally: Tally) -> Tensor:
    """Accuracy within each group."""
    return _share(_right(tally).sum(-2), tally.count.sum(-2))


def accuracy(tally: Tally, favourable: int = 1) -> Tensor:
    """Share of rows predicted correctly."""
    return _share(_right(tally).sum((-1, -2)), tally.count.sum((-1, -2)))


def dpd(tally: Tally, favourable: int = 1) -> Tensor:
    """Demographic parity difference (DPD)."""
    return _spread(selection_rate(tally.compared(), favourable))


def eod(tally: Tally, favourable: int = 1) -> Tensor:
    """Equal opportunity difference (EOD)."""
    tally = tally.compared()
    return _spread(favourable_rate(tally, favourable)[..., label_of(tally, favourable), :])


def equalized_odds(tally: Tally, favourable: int = 1) -> Tensor:
    """Equalised odds difference: the largest gap in P(prediction favourable | label, group) over all true labels."""
    spreads = _spread(favourable_rate(tally.compared(), favourable))
    return _largest(spreads)


def impact_ratio(tally: Tally, favourable: int = 1) -> Tensor:
    """The smallest group's P(prediction favourable | group) over the largest; NaN if nobody is selected."""
    rates = selection_rate(tally.compared(), favourable)
    return _share(_smallest(rates), _largest(rates))


def predictive_parity(tally: Tally, favourable: int = 1) -> Tensor:
    """Largest gap in P(label favourable | prediction favourable, group); NaN if a group has no such prediction."""
    label = label_of(tally, favourable)
    chosen = tally.compared().confusion[..., label, :, :]
    return _spread(_share(chosen[..., label, :], chosen.sum(-2)))


def accuracy_parity(tally: Tally, favourable: int = 1) -> Tensor:
    """Largest difference of accuracy between groups."""
    return _spread(group_accuracy(tally.compared()))


def worst_group_accuracy(tally: Tally, favourable: int = 1) -> Tensor:
    """Accuracy of the group with the lowest accuracy."""
    return _smallest(group_accuracy(tally.compared()))


def loss(tally: Tally, favourable: int = 1) -> Tensor:
    """Mean loss."""
    return tally.mean_loss()


def loss_gap(tally: Tally, favourable: int = 1) -> Tensor:
    """The constraint of FFALM, mu_0 - mu_1, signed; for more groups the largest minus the smallest mean loss."""
    means = tally.compared().group_losses()
    return means[..., 0] - means[..., 1] if means.shape[-1] == 2 else _spread(means)


def signed_dpd(tally: Tally, favourable: int = 1) -> Tensor:
    """r_0 - r_1, for methods that need the sign of the gap between two groups."""
    rates = selection_rate(tally, favourable)
    return rates[..., 0] - rates[..., 1]


def signed_eod(tally: Tally, favourable: int = 1) -> Tensor:
    """tpr_0 - tpr_1, for methods that need the sign of the gap between two groups."""
    rates = favourable_rate(tally, favourable)[..., label_of(tally, favourable), :]
    return rates[..., 0] - rates[..., 1]


def joint_dpd(tally: Tally, favourable: int = 1) -> Tensor:
    """The gap of the joint probabilities P(prediction favourable, group), as in the paper's released code.

    Both groups share one denominator, so unequal group sizes alone give a gap: for comparison with that code only.
    """
    tally = tally.compared()
    chosen = tally.confusion[..., label_of(tally, favourable), :, :].sum(-2)
    return _spread(_share(chosen, tally.count.sum((-1, -2))[..., None]))


def joint_eod(tally: Tally, favourable: int = 1) -> Tensor:
    """The released code's equal opportunity gap: like `joint_dpd`, among rows with the favourable label."""
    tally, label = tally.compared(), label_of(tally, favourable)
    return _spread(_share(tally.confusion[..., label, label, :], tally.count[..., label, :].sum(-1)[..., None]))


Metric = Callable[["Tally", int], "Tensor"]

#: The metrics recorded each round, by public name.
METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "dpd": dpd,
    "eod": eod,
    "equalized_odds": equalized_odds,
    "impact_ratio": impact_ratio,
    "predictive_parity": predictive_parity,
    "accuracy_parity": accuracy_parity,
    "worst_group_accuracy": worst_group_accuracy,
    "loss": loss,
    "loss_gap": loss_gap,
    "joint_dpd": joint_dpd,
    "joint_eod": joint_eod,
}


def undefined(tally: Tally, label_names: tuple[str, ...], group_names: tuple[str, ...]) -> list[str]:
    """One sentence for each compared (label, group) cell without rows, because some metrics are NaN then."""
    empty = (tally.compared().count == 0).nonzero().tolist()
    return [
        f"No row of group {group_names[group]!r} has the label {label_names[label]!r}: metrics that compare it are "
        "undefined (NaN)."
        for label, group in empty
    ]


def check_rows(labels: Tensor, predictions: Tensor, groups: Tensor) -> None:
    """Refuse empty input and inputs of unequal length."""
    require(
        len(labels) == len(predictions) == len(groups),
        f"Labels, predictions and groups must have one entry per row; got {len(labels)}, {len(predictions)} and "
        f"{len(groups)}.",
    )
    require(len(labels) > 0, "There are no rows to tally.")


def _right(tally: Tally) -> Tensor:
    """Rows predicted correctly, of shape (..., label, group)."""
    right: Tensor = library(tally.confusion).diagonal(tally.confusion, 0, -3, -2)
    return right.swapaxes(-1, -2)


def _share(hits: Tensor, trials: Tensor) -> Tensor:
    """Ratio of counts in float64; NaN for no trials."""
    with np.errstate(invalid="ignore"):
        share: Tensor = double(hits) / double(trials)
    return share


def _spread(values: Tensor) -> Tensor:
    """Largest minus smallest over groups; NaN if any group's value is."""
    return _largest(values) - _smallest(values)


def _largest(values: Tensor) -> Tensor:
    largest: Tensor = library(values).amax(values, -1)
    return largest


def _smallest(values: Tensor) -> Tensor:
    smallest: Tensor = library(values).amin(values, -1)
    return smallest
