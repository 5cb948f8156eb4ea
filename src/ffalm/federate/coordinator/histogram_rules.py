"""Score histograms under the rules against lying sites: thresholds must not be one site's choice.

`max_share` bounds the rows that a site counts with, as in means by rows. Under a robust `aggregation`, up to `liars`
sites are left out: those whose scores are distributed most unlike the others'. The distance of a site is the largest
over (label, group) cells of sqrt(n) times the Kolmogorov-Smirnov distance between the scores of its n rows there and
the median of the others' distribution functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from ffalm.fairness import ScoreHistogram
from ffalm.federate.coordinator.robust_aggregation import FEWEST_COMPARED, largest_size

_UNUSUAL = 2.0  # times the median of the other sites' distances


def farthest(own: Mapping[str, Mapping[str, ScoreHistogram]], liars: int) -> list[str]:
    """Up to `liars` sites whose scores are most unlike the others', one after the other."""
    left, found = dict(own), list[str]()
    while len(left) > FEWEST_COMPARED and len(found) < liars:
        distances = _distances({site: torch.stack([one.counts for one in parts.values()]).sum((0, 2))
                                for site, parts in left.items()})  # fmt: skip
        site = max(distances, key=lambda name: distances[name])
        others = median(distance for name, distance in distances.items() if name != site)
        if distances[site] <= _UNUSUAL * others:
            break
        found.append(site)
        del left[site]
    return found


def bounded(own: Mapping[str, Mapping[str, ScoreHistogram]], max_share: float) -> dict[str, dict[str, ScoreHistogram]]:
    """The histograms, of which those of too many rows are scaled down, cell by cell."""
    scaled = {site: dict(parts) for site, parts in own.items()}
    for part in next(iter(own.values()), {}):
        rows = {site: int(parts[part].counts.sum()) for site, parts in own.items()}
        bound = largest_size(sorted(size for size in rows.values() if size > 0), max_share)
        for site, size in rows.items():
            if size > bound:
                one = own[site][part]
                fewer = (one.counts.cumsum(0).double() * (bound / size)).floor().long()
                scaled[site][part] = replace(one, counts=fewer.diff(dim=0, prepend=torch.zeros_like(fewer[:1])))
    return scaled


def _distances(counts: Mapping[str, Tensor]) -> dict[str, float]:
    """By site, from counts of shape (bin, label, group)."""
    sizes = torch.stack([one.sum(0) for one in counts.values()]).double()  # (site, label, group)
    shares = torch.stack([one.cumsum(0) for one in counts.values()]).double() / sizes.clamp(min=1).unsqueeze(1)
    shares = torch.where(sizes.unsqueeze(1) > 0, shares, torch.nan)
    found = {}
    for place, site in enumerate(counts):
        others = torch.cat([shares[:place], shares[place + 1 :]]).nanmedian(0).values
        apart = (shares[place] - others).abs().amax(0) * sizes[place].sqrt()
        found[site] = float(apart.nan_to_num(0.0).max())
    return found
