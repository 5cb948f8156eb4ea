"""What a site sends about its rows: counts, Tallies and score histograms without cells of too few rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram, Tally


@dataclass(frozen=True)
class Disclosed:
    """A Tally of which some (label, group) cells are withheld; those hold zeros, counts included.

    After the last round of a federation with a fairness target, the histogram of the same rows' scores comes with it.
    """

    tally: Tally
    withheld: Tensor  # bool of shape (label, group)
    histogram: ScoreHistogram | None = None

    @classmethod
    def of(
        cls, tally: Tally, min_group: int, histogram: ScoreHistogram | None = None, total_known: bool = False
    ) -> Disclosed:
        """The Tally and histogram without cells of fewer than `min_group` rows: see `withheld`."""
        small = withheld(tally.count, min_group, total_known)
        if histogram is not None:
            histogram = replace(histogram, counts=histogram.counts.masked_fill(small, 0))
        return cls(without(tally, small), small, histogram)

    def record(self) -> dict[str, Tensor]:
        """As a record of a message, without the histogram: those of all parts are sent together."""
        return {"confusion": self.tally.confusion, "loss": self.tally.loss, "withheld": self.withheld}

    @classmethod
    def from_record(cls, record: dict[str, Tensor]) -> Disclosed:
        """The inverse of `record`."""
        return cls(Tally(record["confusion"], record["loss"]), record["withheld"])


@dataclass(frozen=True)
class Scored:
    """The sites' scores of a held-out part: the sum, its sites and, if single answers are known, each site's own."""

    sites: tuple[str, ...]
    tally: Tally
    own: dict[str, Disclosed]

    @classmethod
    def of(cls, told: dict[str, Disclosed], task: Task) -> Scored:
        """The sum of single answers."""
        return cls(tuple(told), pooled(list(told.values()), task), told)


def fewest_rows(min_group: int) -> int:
    """How many rows of a site must hold a value for it to be named: at least two, whatever the rule is."""
    return max(2, min_group)


def withheld(counts: Tensor, min_group: int, total_known: bool = False) -> Tensor:
    """The cells that hold too few rows to be sent; none if a single row is enough.

    An empty cell is withheld like any other small one, so that 0 rows look like a few. If the sum over all cells is
    known (the number of rows, their mean loss), the sum over the withheld cells follows by subtraction: the next larger
    cells are withheld too, until that is a sum over at least `min_group` rows.
    """
    small = (counts < min_group) & (min_group > 1)
    if not total_known or not bool(small.any()):
        return small
    ordered, places = counts.flatten().sort(stable=True)
    hidden = torch.zeros_like(small).flatten()
    hidden[places] = (ordered < min_group) | (ordered.cumsum(0) - ordered < min_group)
    return hidden.view(small.shape)


def without(tally: Tally, cells: Tensor) -> Tally:
    """The Tally with zeros in the marked cells."""
    return Tally(tally.confusion.masked_fill(cells, 0), tally.loss.masked_fill(cells, 0.0), tally.excluded)


def spread(tally: Tally, hidden: Tensor) -> Tally:
    """The Tally with the rows of the marked cells spread evenly over them, by prediction, and so the sum of losses.

    It reveals no more of these cells than their sum, which is over enough rows if `withheld` knew the total.
    """
    number = int(hidden.sum())
    if number == 0:
        return tally
    rows = tally.confusion[:, hidden].sum(-1, keepdim=True)
    confusion, loss = tally.confusion.clone(), tally.loss.clone()
    confusion[:, hidden] = (rows + torch.arange(number, device=rows.device)) // number
    loss[hidden] = tally.loss[hidden].sum() / number
    return Tally(confusion, loss, tally.excluded)


def cells(mask: Tensor, task: Task) -> list[str]:
    """The marked (label, group) cells as text."""
    return [
        f"{task.label} {task.label_names[label]}, {task.group} {task.group_names[group]}"
        for label, group in mask.nonzero().tolist()
    ]


def pooled(parts: list[Disclosed], task: Task) -> Tally:
    """The sum of the Tallies, in the given order: exact for the rows in it."""
    total = Tally.zeros((task.labels, task.groups))
    for part in parts:
        total = total + part.tally
    return total
