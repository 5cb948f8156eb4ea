"""Aggregation that a few lying sites cannot steer: the rule `aggregation` of `federation.toml`.

mean      the weighted mean of all answers: one site can put the model anywhere
clip      each change is shortened to the median of the changes' norms before the mean
trimmed   in every coordinate the `liars` largest and smallest values are left out of the mean (Yin et al., 2018)
median    the coordinate-wise median
krum      the mean of those answers that lie nearest to the others (Multi-Krum, Blanchard et al., 2017)

Models, uploads and the states that sites stepped to (duals) go through the same rule. All rules but `mean` look at
single answers, so that none of them works under secure aggregation. `max_share` bounds a site's weight in every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.jobs import Model
from ffalm.engines.server import ClientUpdate
from ffalm.privacy import LEDGER

Rule = Literal["mean", "clip", "trimmed", "median", "krum"]
FEWEST_COMPARED = 3  # answers, of which two must agree on what is usual before a third can be far from it
Updates = Mapping[int, ClientUpdate]


def robust(
    rule: Rule, liars: int, sent: Snapshot, updates: Updates, rows: Mapping[int, int]
) -> dict[int, ClientUpdate]:
    """The updates, changed so that their weighted mean is the result of the rule; `krum` leaves some of them out."""
    if rule == "krum":
        return {client: updates[client] for client in nearest(sent, updates, liars)}
    if rule == "clip":
        return _in_every_part(sent, updates, _shortened)
    if rule in ("trimmed", "median"):
        shares = torch.tensor([rows[client] for client in updates], dtype=torch.float64)
        most = (len(updates) - 1) // 2
        trim = most if rule == "median" else min(liars, most)
        return _in_every_part(sent, updates, lambda _, ends: _replaced(ends, shares, trim))
    return dict(updates)


def capped(rows: Tensor, max_share: float) -> Tensor:
    """Row counts per (client, label, group), scaled down so that no client has more than that share of the sum.

    Each n_i is bounded by the largest c with c <= max_share * sum_j min(n_j, c), and by the smallest n_j where there is
    none; a client's cells shrink alike.
    """
    sizes = [int(size) for size in rows.sum((-1, -2))]
    bound = largest_size(sizes, max_share)
    cells = [_shrunk(own, bound) if size > bound else own for own, size in zip(rows, sizes, strict=True)]
    return torch.stack(cells)


def largest_size(rows: Iterable[int], max_share: float) -> int:
    """The bound c on the rows of each. With the k largest bounded, c = max_share * (rest + k c)."""
    sizes = sorted(size for size in rows if size > 0)
    if not sizes or sizes[-1] <= max_share * sum(sizes):
        return sizes[-1] if sizes else 0
    for above in range(1, len(sizes)):
        smaller = sizes[: len(sizes) - above]
        bound = max_share * sum(smaller) / (1 - max_share * above) if max_share * above < 1 else 0.0
        if bound >= smaller[-1]:
            return int(bound)
    return sizes[0]


def _shrunk(cells: Tensor, size: int) -> Tensor:
    """Counts in the same proportions that sum to `size`; what rounding leaves over goes to the largest cell."""
    less = (cells.double() * (size / float(cells.sum()))).floor().long()
    less.view(-1)[int(cells.argmax())] += size - int(less.sum())
    return less


def trimmed_mean(values: Tensor, shares: Tensor, trim: int) -> Tensor:
    """The weighted mean over the first axis, per coordinate without the `trim` largest and smallest values."""
    ordered, places = values.double().sort(0)
    kept = slice(trim, len(values) - trim)
    weights = shares[places[kept]]
    return (ordered[kept] * weights).sum(0) / weights.sum(0)


def nearest(sent: Snapshot, updates: Updates, liars: int) -> list[int]:
    """The clients whose answers are nearest to the others': all but `liars`, by Krum's score.

    The score is the sum of the squared distances to the n - liars - 2 nearest other answers. Those of models and of
    each upload are added in units of their medians: sites that send gradients do not move the model at all.
    """
    clients = list(updates)
    changes = [_vector(sent, updates[client]) for client in clients]
    uploads = [
        [
            torch.cat([value.double().flatten() for value in updates[client].uploads[name].values()])
            for client in clients
        ]
        for name in updates[clients[0]].uploads
    ]
    distances = torch.stack([_distances(vectors) for vectors in (changes, *uploads)]).sum(0)
    count = max(1, len(clients) - liars - 2)
    scores = distances.sort(1).values[:, 1 : count + 1].sum(1)
    kept = scores.argsort(stable=True)[: max(1, len(clients) - liars)]
    return sorted(clients[place] for place in kept.tolist())


def _distances(vectors: Sequence[Tensor]) -> Tensor:
    """Squared distances between all pairs, by the median of those that are not 0."""
    stacked = torch.stack(list(vectors))
    found = torch.cdist(stacked, stacked).square()
    apart = found[found > 0]
    return found / apart.median() if len(apart) else found


def _in_every_part(
    sent: Snapshot, updates: Updates, rule: Callable[[Model, Sequence[Model]], Sequence[Model]]
) -> dict[int, ClientUpdate]:
    """The updates with a rule applied to their models, their uploads of each name, and the states that they stepped to.

    A rule takes where all sites began, which is 0 for uploads, and where each ended.
    """
    every = list(updates.values())
    models = rule(sent.model, [one.model for one in every])
    done = [replace(one, model=model) for one, model in zip(every, models, strict=True)]
    stepped = [one.state for one in every if one.state is not None]
    if len(stepped) == len(every):
        begun = {name: value for name, value in sent.state.items() if name != LEDGER}
        done = [replace(one, state=state) for one, state in zip(done, rule(begun, stepped), strict=True)]
    for name, like in every[0].uploads.items():
        nothing = {key: torch.zeros_like(value) for key, value in like.items()}
        vectors = rule(nothing, [one.uploads[name] for one in every])
        done = [replace(one, uploads={**one.uploads, name: vector}) for one, vector in zip(done, vectors, strict=True)]
    return dict(zip(updates, done, strict=True))


def _shortened(start: Model, ends: Sequence[Model]) -> list[Model]:
    """Each end, moved towards the start until it is no farther from it than the median end."""
    floats = [name for name, value in start.items() if value.is_floating_point()]
    if not floats:
        return [dict(end) for end in ends]
    norms = torch.stack(
        [torch.stack([(end[name].double() - start[name].double()).square().sum() for name in floats]).sum().sqrt()
         for end in ends]
    )  # fmt: skip
    factors = (norms.median() / norms.clamp(min=1e-300)).clamp(max=1.0).tolist()
    return [
        {
            name: (start[name].double() + factor * (value.double() - start[name].double())).to(value.dtype)
            if name in floats and factor < 1
            else value
            for name, value in end.items()
        }
        for end, factor in zip(ends, factors, strict=True)
    ]


def _replaced(ends: Sequence[Model], shares: Tensor, trim: int) -> list[Model]:
    """The trimmed mean in the place of every end; counters, which have no mean, stay."""
    joined = {
        name: trimmed_mean(torch.stack([end[name] for end in ends]), shares, trim).to(like.dtype)
        for name, like in ends[0].items()
        if like.is_floating_point()
    }
    return [{**end, **joined} for end in ends]


def _vector(sent: Snapshot, update: ClientUpdate) -> Tensor:
    parts = [
        (update.model[name].double() - value.double()).flatten()
        for name, value in sent.model.items()
        if value.is_floating_point()
    ]
    return torch.cat(parts)
