"""Score histograms and Tallies under the rules against lying sites: no single site may choose the thresholds, or the
gaps that an algorithm measures.

`max_share` bounds the rows that a site counts for, as in means by rows. Under a robust `aggregation`, up to `liars`
sites are left out: those whose scores are distributed most unlike the others'. The distance of a site is the largest
over (label, group) cells of sqrt(n) times the Kolmogorov-Smirnov distance between the scores of its n rows there and
the median of the others' distribution functions. Of a Tally, predictions stand for scores, and mean losses of cells
are compared likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ffalm.fairness import ScoreHistogram, Tally
from ffalm.federate.coordinator.robust_aggregation import FEWEST_COMPARED, largest_size

_UNUSUAL = 2.0  # times the median of the other sites' distances
_UNUSUAL_TALLY = 3.0  # the same for Tallies, whose distances scatter more: a few rates, not whole distributions
_Site = TypeVar("_Site", str, int)


def farthest(own: Mapping[str, Mapping[str, ScoreHistogram]], liars: int) -> list[str]:
    """Up to `liars` sites whose scores are most unlike the others', one after the other."""
    return _unlike(
        {site: _shares(torch.stack([one.counts for one in parts.values()]).sum((0, 2))) for site, parts in own.items()},
        liars,
        _UNUSUAL,
    )


def unlike(tallies: Mapping[int, Tally], liars: int) -> list[int]:
    """Up to `liars` clients whose predictions or mean losses of a cell are most unlike the others'."""
    by_predictions = _unlike({client: _shares(one.confusion) for client, one in tallies.items()}, liars, _UNUSUAL_TALLY)
    losses = {client: _Measured((one.loss / one.count.clamp(min=1)).unsqueeze(0), one.count)
              for client, one in tallies.items() if client not in by_predictions}  # fmt: skip
    return [*by_predictions, *_unlike(losses, liars - len(by_predictions), _UNUSUAL_TALLY)]


def bounded(own: Mapping[str, Mapping[str, ScoreHistogram]], max_share: float) -> dict[str, dict[str, ScoreHistogram]]:
    """The histograms; those of too many rows are scaled down, cell by cell."""
    scaled = {site: dict(parts) for site, parts in own.items()}
    for part in next(iter(own.values()), {}):
        rows = {site: int(parts[part].counts.sum()) for site, parts in own.items()}
        bound = largest_size(rows.values(), max_share)
        for site, size in rows.items():
            if size > bound:
                one = own[site][part]
                fewer = (one.counts.cumsum(0).double() * (bound / size)).floor().long()
                scaled[site][part] = replace(one, counts=fewer.diff(dim=0, prepend=torch.zeros_like(fewer[:1])))
    return scaled


def bounded_tallies(tallies: Mapping[int, Tally], max_share: float) -> dict[int, Tally]:
    """The Tallies; those of too many rows are scaled down, with the same mean losses of cells."""
    rows = {client: int(one.count.sum()) for client, one in tallies.items()}
    bound = largest_size(rows.values(), max_share)
    return {
        client: one if rows[client] <= bound else _fewer(one, bound / rows[client]) for client, one in tallies.items()
    }


def _fewer(tally: Tally, factor: float) -> Tally:
    confusion = (tally.confusion.double() * factor).floor().long()
    return Tally(confusion, tally.loss * confusion.sum(-3) / tally.count.clamp(min=1), tally.excluded)


class _Measured(NamedTuple):
    """A site's values for each (label, group) cell, along the first axis, and its rows in each cell."""

    values: Tensor
    rows: Tensor


def _shares(counts: Tensor) -> _Measured:
    """The distribution function over the bins or predictions on the first axis."""
    rows = counts.sum(0)
    return _Measured(counts.cumsum(0).double() / rows.clamp(min=1), rows)


def _unlike(told: Mapping[_Site, _Measured], liars: int, times: float) -> list[_Site]:
    left, found = dict(told), list[_Site]()
    while len(left) > FEWEST_COMPARED and len(found) < liars:
        distances = _distances(left)
        site = max(distances, key=lambda name: distances[name])
        others = median(distance for name, distance in distances.items() if name != site)
        if distances[site] <= times * others:
            break
        found.append(site)
        del left[site]
    return found


def _distances(told: Mapping[_Site, _Measured]) -> dict[_Site, float]:
    """By site, the largest over cells of sqrt(rows) times the distance of its values from the median of the others'."""
    rows = torch.stack([one.rows for one in told.values()]).double()  # (site, label, group)
    values = torch.stack([one.values for one in told.values()])
    values = torch.where(rows.unsqueeze(1) > 0, values, torch.nan)
    found = {}
    for place, site in enumerate(told):
        others = torch.cat([values[:place], values[place + 1 :]]).nanmedian(0).values
        apart = (values[place] - others).abs().amax(0) * rows[place].sqrt()
        found[site] = float(apart.nan_to_num(0.0).max())
    return found
