"""The Tally: all that a client reports about fairness, as sums and counts per (label, group).

The Tally of a union of data sets is exactly the sum of their Tallies. Therefore global metrics need no central test
set, work with secure aggregation, and are never averages of ratios.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ffalm.errors import UserError, require, short_repr
from ffalm.fairness import group_metrics, intervals
from ffalm.fairness.array_library import library, whole
from ffalm.fairness.power import rows_needed
from ffalm.frame_html import frame_html

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame
    from torch import Tensor

_MOST_MEMBERS = 2**25  # entries of a row's membership in cells, of 8 bytes each


@dataclass(frozen=True, repr=False)
class Tally:
    """Counts of predictions and sums of losses, with any leading axes (seed, client).

    `confusion` is int64 of shape (..., prediction, label, group), or float64 with differential privacy; `loss`
    is float64 of shape (..., label, group). The last `excluded` groups count for accuracy and mean loss, and not for
    metrics that compare groups. Counts that were read from a file are numpy arrays.
    """

    confusion: Tensor
    loss: Tensor
    excluded: int = 0

    def __post_init__(self) -> None:
        shapes = [tuple[int, ...](getattr(one, "shape", ())) for one in (self.confusion, self.loss)]
        counted, lost = shapes
        require(
            len(counted) > 2 and len(lost) > 1 and counted[-2:] == lost[-2:],
            f"A Tally has counts per (prediction, label, group) and losses per (label, group); got "
            f"{counted} and {lost}.",
        )
        some = isinstance(self.excluded, int) and 0 <= self.excluded <= lost[-1]
        require(some, f"Of {lost[-1]} groups, {short_repr(self.excluded)} cannot be left out.")

    @classmethod
    def of(
        cls,
        predictions: Tensor,
        losses: Tensor,
        labels: Tensor,
        groups: Tensor,
        shape: tuple[int, int],
        mask: Tensor | None = None,
    ) -> Tally:
        """The Tally of rows on the last axis; `shape` is (labels, groups) and `mask` leaves rows out."""
        import torch
        from torch.nn.functional import one_hot

        label_count, group_count = shape
        cells = label_count * group_count
        most = max(1, _MOST_MEMBERS // cells)
        if labels.shape[-1] > most:  # with many groups: as many rows at a time as memory holds
            pieces = [torch.split(one, most, -1) for one in (predictions, losses, labels, groups)]
            masks = repeat(None) if mask is None else torch.split(mask, most, -1)
            rows = zip(*pieces, masks, strict=False)
            return functools.reduce(cls.__add__, (cls.of(p, x, y, g, shape, m) for p, x, y, g, m in rows))
        member = one_hot(labels * group_count + groups, cells).double()
        if mask is not None:
            member = member * mask.unsqueeze(-1)
        predicted = one_hot(predictions, label_count).double()
        # Products with 0/1 matrices instead of scatters: exact for counts, and deterministic on a GPU.
        confusion = (predicted.transpose(-1, -2) @ member).round().long()
        loss = (losses.detach().double().unsqueeze(-2) @ member).squeeze(-2)
        return cls(confusion.view(*confusion.shape[:-1], *shape), loss.view(*loss.shape[:-1], *shape))

    @classmethod
    def of_counts(cls, confusion: Any, excluded: int = 0) -> Tally:
        """The Tally of rows counted by prediction, label and group; their losses are not known."""
        import torch

        from ffalm.arrays import numbers

        counts = numbers(confusion, "counts")
        square = counts.ndim > 2 and counts.shape[-3] == counts.shape[-2]
        require(square, "Counts are by prediction, label and group, with as many predictions as labels.")
        counts = counts if counts.is_floating_point() else counts.long()
        return cls(counts, counts.new_full(counts.shape[1:], torch.nan, dtype=torch.float64), excluded)

    @classmethod
    def zeros(cls, shape: tuple[int, int], device: torch.device | None = None) -> Tally:
        """The Tally of no rows, the neutral element of addition."""
        import torch

        try:
            labels, groups = (int(count) for count in shape)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"The shape of a Tally is (labels, groups); got {short_repr(shape)}.") from None
        require(min(labels, groups) >= 0, f"The shape of a Tally is (labels, groups); got {short_repr(shape)}.")
        confusion = torch.zeros(labels, labels, groups, dtype=torch.int64, device=device)
        return cls(confusion, torch.zeros(labels, groups, dtype=torch.float64, device=device))

    @classmethod
    def stack(cls, tallies: list[Tally]) -> Tally:
        """Several Tallies along a new leading axis."""
        _check_alike(tallies)
        xp = library(tallies[0].loss)
        return cls(xp.stack([t.confusion for t in tallies]), xp.stack([t.loss for t in tallies]), tallies[0].excluded)

    def __add__(self, other: Tally) -> Tally:
        _check_alike([self, other])
        excluded = max(self.excluded, other.excluded)
        return Tally(self.confusion + other.confusion, self.loss + other.loss, excluded)

    def __getitem__(self, index: Any) -> Tally:
        """Select along the leading axes."""
        return Tally(self.confusion[index], self.loss[index], self.excluded)

    def pooled(self) -> Tally:
        """Summed over the last leading axis: the clients' Tallies become the federation's."""
        require(self.loss.ndim > 2, "This is one Tally, without a leading axis to sum over.")
        return Tally(self.confusion.sum(-4), self.loss.sum(-3), self.excluded)

    def rounded(self) -> Tally:
        """With counts of whole rows again, after sums in floating point."""
        return replace(self, confusion=whole(self.confusion))

    def to(self, device: torch.device | str) -> Tally:
        """The same Tally on another device."""
        import torch

        try:
            confusion, loss = (torch.as_tensor(one, device=device) for one in (self.confusion, self.loss))
        except (RuntimeError, TypeError, ValueError) as error:  # by torch, for a device that is not there
            raise UserError(f"The device {short_repr(device)} cannot be used: {str(error).splitlines()[0]}.") from None
        return Tally(confusion, loss, self.excluded)

    def excluding(self, groups: int) -> Tally:
        """The same Tally, whose last so many groups are not compared."""
        return replace(self, excluded=groups)

    def compared(self) -> Tally:
        """The rows of the groups that are compared, and no others."""
        groups = self.loss.shape[-1] - self.excluded
        return Tally(self.confusion[..., :groups], self.loss[..., :groups])

    @property
    def count(self) -> Tensor:
        """Rows per (label, group)."""
        return self.confusion.sum(-3)

    def mean_loss(self) -> Tensor:
        """Mean loss over all rows; NaN if there are none."""
        return self.loss.sum((-1, -2)) / self.count.sum((-1, -2))

    def group_losses(self) -> Tensor:
        """Mean loss of each group, the paper's mu_s; NaN for a group without rows."""
        return self.loss.sum(-2) / self.count.sum(-2)

    # One number each, for a Tally without leading axes. NaN means undefined, never 0.

    def accuracy(self) -> float:
        """Share of rows predicted correctly."""
        return float(group_metrics.accuracy(self))

    def dpd(self, favourable: int = 1) -> float:
        """Demographic parity difference (DPD): largest gap in P(prediction favourable | group)."""
        return float(group_metrics.dpd(self, favourable))

    def eod(self, favourable: int = 1) -> float:
        """Equal opportunity difference (EOD): largest gap in P(prediction favourable | label favourable, group)."""
        return float(group_metrics.eod(self, favourable))

    def equalized_odds(self, favourable: int = 1) -> float:
        """Equalised odds difference: largest gap in P(prediction favourable | label, group) over all true labels."""
        return float(group_metrics.equalized_odds(self, favourable))

    def accuracy_parity(self) -> float:
        """Largest gap in accuracy between groups."""
        return float(group_metrics.accuracy_parity(self))

    def loss_gap(self) -> float:
        """Mean loss of group 0 minus that of group 1 (for more groups: largest minus smallest)."""
        return float(group_metrics.loss_gap(self))

    def worst_group_accuracy(self) -> float:
        """Accuracy of the group with the lowest accuracy."""
        return float(group_metrics.worst_group_accuracy(self))

    def metrics(self, favourable: int = 1) -> dict[str, float]:
        """Every metric by name."""
        return {name: float(metric(self, favourable)) for name, metric in group_metrics.METRICS.items()}

    def metrics_of_each(self, favourable: int = 1) -> list[dict[str, float]]:
        """Every metric by name, for each Tally along the one leading axis."""
        require(self.loss.ndim == 3, f"There must be one leading axis; got {self.loss.ndim - 2}.")
        columns = {name: metric(self, favourable).tolist() for name, metric in group_metrics.METRICS.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def by_group(self, favourable: int = 1, names: Sequence[str] = ()) -> DataFrame:
        """Each group's rows, accuracy, rates and mean loss: a data frame shaped as `MetricFrame.by_group` of fairlearn.

        `true_positive_rate` and `false_positive_rate` are P(prediction favourable | label favourable or not, group).
        """
        from pandas import DataFrame, Index

        require(self.loss.ndim == 2, "Groups are shown of one Tally: select one along the leading axes.")
        count = self.loss.shape[-1]
        try:
            given = list(names)
        except TypeError:
            raise UserError(f"The names of groups are a list; got {short_repr(names)}.") from None
        require(len(given) in (0, count), f"There are {count} groups; got {len(given)} names.")
        favourable = group_metrics.label_of(self, favourable)
        columns = {
            "rows": self.count.sum(0),
            "accuracy": group_metrics.group_accuracy(self),
            "selection_rate": group_metrics.selection_rate(self, favourable),
            "true_positive_rate": group_metrics.favourable_rate(self, favourable)[favourable],
            "false_positive_rate": group_metrics.false_positive_rate(self, favourable),
            "loss": self.group_losses(),
        }
        values = {name: column.tolist() for name, column in columns.items()}
        return DataFrame(values, index=Index(given or [str(group) for group in range(count)], name="group"))

    def __repr__(self) -> str:
        *axes, labels, groups = self.loss.shape
        several = f"{' x '.join(map(str, axes))} Tallies, " if axes else ""
        return f"Tally({several}{float(self.confusion.sum()):,.0f} rows, {labels} labels, {groups} groups)"

    def _repr_html_(self) -> str | None:
        return frame_html(repr(self), self.by_group()) if self.loss.ndim == 2 else None

    def interval(self, metric: str, level: float = 0.95, favourable: int = 1) -> tuple[float, float]:
        """A confidence interval of a metric over the sampling of the rows."""
        return intervals.interval(self, metric, level, favourable)

    def rows_needed(self, metric: str = "dpd", level: float = 0.95, power: float = 0.8, favourable: int = 1) -> float:
        """Rows, in the same shares, that it takes to distinguish a gap of this size from 0 with probability `power`."""
        return rows_needed(self, metric, level, power, favourable)


def _check_alike(tallies: Sequence[Tally]) -> None:
    """Refuse Tallies of other labels and groups: numbers of theirs would be added to those of others."""
    given = isinstance(tallies, Sequence) and len(tallies) > 0 and all(isinstance(one, Tally) for one in tallies)
    alike = given and len({one.loss.shape[-2:] for one in tallies}) == 1
    require(alike, "Tallies can be joined only if all have the same number of labels and groups.")


def tally(y_true: Any, y_pred: Any, group: Any, losses: Any = None) -> Tally:
    """The Tally of any predictions: arrays of whole numbers, one entry per row; groups may be texts.

    Groups that are texts are numbered in sorted order. Without `losses` the loss sums, and every metric computed from
    them, are NaN.
    """
    import torch

    from ffalm.arrays import codes, numbers, texts

    named = texts(group)
    if named is not None:
        order = {name: place for place, name in enumerate(sorted({name for name in named if name is not None}))}
        require(None not in named, "Some groups are missing: leave those rows out, or give them a group of their own.")
        group = [order[name] for name in named if name is not None]
    given = {"labels": y_true, "predictions": y_pred, "groups": group}
    labels, predictions, groups = (codes(values, what).flatten() for what, values in given.items())
    group_metrics.check_rows(labels, predictions, groups)
    label_count = max(2, int(labels.max()) + 1, int(predictions.max()) + 1)
    group_count = max(2, int(groups.max()) + 1)
    unknown = labels.new_full(labels.shape, torch.nan, dtype=torch.float64)
    known = unknown if losses is None else numbers(losses, "losses").flatten()
    require(len(known) == len(labels), f"There must be one loss per row; got {len(known)} for {len(labels)} rows.")
    return Tally.of(predictions, known, labels, groups, (label_count, group_count))
