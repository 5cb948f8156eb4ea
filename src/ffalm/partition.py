"""Who owns which training rows: label skew, group skew, natural silos or none.

Every function returns one tensor of row numbers per client and draws only from the generator it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ffalm.errors import UserError, require, require_known
from ffalm.randomness import Purpose, generator
from ffalm.settings import check_ranges, flag

if TYPE_CHECKING:
    from torch import Tensor

    from ffalm.data.types import Dataset

Rows = NDArray[np.int64]

_TRIES = 1000
_SINKHORN_SWEEPS = 100
_MORE_SWEEPS = 10_000  # where the paper's hundred leave clients uneven by more than _UNEVEN of their size
_UNEVEN = 1e-3
_SMALLEST_ALPHA = 1e-4
_PANEL = "Federation"

#: The value of `leave_out` that stands for every owner in turn.
EACH = "each"


Kind = Literal["plain", "even", "balanced", "group", "iid", "silos"]


@dataclass(frozen=True)
class Partition:
    """How training rows are given to clients.

    - "plain": for each label a Dirichlet(alpha) draw over clients;
    - "even": the same with the sizes of clients evened out, so that they differ in their labels alone;
    - "balanced": the same with labels cut down to the rarest too, as in the paper's released code;
    - "group": for each group a Dirichlet(alpha) draw over clients;
    - "iid": shuffled and split evenly;
    - "silos": the owners that the data itself names.
    """

    kind: Kind = field(
        default="plain",
        metadata=flag(
            "How rows go to clients: plain (Dirichlet by label), even (also clients of equal size), balanced (also "
            "equally many rows of every label), group (Dirichlet by group), iid, or silos (the data's owners).",
            _PANEL,
            "partition",
        ),
    )
    clients: int = field(default=10, metadata=flag("Number of clients.", _PANEL, least=1, most=10**6))
    alpha: float = field(
        default=5.0, metadata=flag("Dirichlet alpha: the smaller, the more clients differ.", _PANEL, above=0)
    )
    min_rows: int | None = field(
        default=None,
        metadata=flag("Fewest training rows per client. Default: 10, for silos 1.", _PANEL, least=1),
    )
    leave_out: str | None = field(
        default=None,
        metadata=flag(
            "Owner to hold out: models train without it and are tested on its rows. each: every owner in turn.",
            _PANEL,
        ),
    )

    def __post_init__(self) -> None:
        require_known("partition", (*_KINDS, "silos"), self.kind)
        check_ranges(self, "partition")
        require(
            self.leave_out is None or self.kind == "silos",
            "A site can be left out only if the data names the sites: name its owner column.",
        )
        if self.min_rows is None:  # owners are as large as they are, while a draw can be repeated
            object.__setattr__(self, "min_rows", 1 if self.kind == "silos" else 10)

    @property
    def smallest(self) -> int:
        """The least number of training rows that a client may have."""
        return self.min_rows or 0

    @property
    def skewed(self) -> bool:
        """Whether alpha has an effect."""
        return self.kind in ("plain", "even", "balanced", "group")

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The settings without effect for this kind of partition."""
        return () if self.skewed else ("alpha",) if self.kind == "iid" else ("alpha", "clients")

    def require_effects(self, given: Mapping[str, Any]) -> None:
        """Refuse settings, as a user gave them, that differ from the default and change nothing."""
        usual = Partition()
        for name in self.without_effect:
            require(
                given.get(name) in (None, getattr(usual, name), [getattr(usual, name)]),
                f"The setting {name!r} would change nothing, since the partition {self.kind!r} does not use it: leave "
                "it out.",
            )

    def split(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """The row numbers of each client's training examples."""
        import torch

        if self.kind == "silos":
            return _silos(dataset, self.smallest)
        rows = len(dataset.train)
        require(
            self.clients * self.smallest <= rows,
            f"{self.clients} clients of at least {self.min_rows} rows do not fit into {rows} training rows: choose "
            "fewer clients or a smaller min_rows.",
        )
        draws = generator(seed, Purpose.PARTITION)
        owned = _KINDS[self.kind](dataset, self, draws)
        return [torch.from_numpy(np.sort(rows)) for rows in owned]


def _iid(dataset: Dataset, partition: Partition, draws: np.random.Generator) -> list[Rows]:
    return list(np.array_split(draws.permutation(len(dataset.train)), partition.clients))


def _dirichlet(dataset: Dataset, partition: Partition, draws: np.random.Generator) -> list[Rows]:
    """The rows of each label or group are cut by a Dirichlet draw; redrawn until every client has `min_rows`."""
    values = (dataset.train.group if partition.kind == "group" else dataset.train.y).numpy()
    kinds = [np.flatnonzero(values == value) for value in np.unique(values)]
    for _ in range(_TRIES):
        shares = draws.dirichlet(np.full(partition.clients, partition.alpha), size=len(kinds))
        cuts = [_cuts(share, len(rows)) for share, rows in zip(shares, kinds, strict=True)]
        sizes = [np.diff(cut, prepend=0, append=len(rows)) for cut, rows in zip(cuts, kinds, strict=True)]
        if np.sum(sizes, axis=0).min() >= partition.smallest:
            dealt = [np.split(draws.permutation(rows), cut) for cut, rows in zip(cuts, kinds, strict=True)]
            return [np.concatenate(owned) for owned in zip(*dealt, strict=True)]
    raise UserError(
        f"No draw of {_TRIES} gave each of {partition.clients} clients {partition.min_rows} rows at alpha "
        f"{partition.alpha}: choose fewer clients, a larger alpha, a smaller min_rows or partition 'balanced'."
    )


def _balanced(dataset: Dataset, partition: Partition, draws: np.random.Generator) -> list[Rows]:
    """Equal labels, equal clients: every label is cut down to the rarest before clients are evened out."""
    kinds = _rows_by_label(dataset, draws)
    rarest = min(len(rows) for rows in kinds)
    return _evened([rows[:rarest] for rows in kinds], partition, draws)


def _even(dataset: Dataset, partition: Partition, draws: np.random.Generator) -> list[Rows]:
    """Equal clients, labels as they are: with so many sweeps that trimming removes almost no rows."""
    return _evened(_rows_by_label(dataset, draws), partition, draws, _MORE_SWEEPS)


def _rows_by_label(dataset: Dataset, draws: np.random.Generator) -> list[Rows]:
    """The rows of each label, shuffled."""
    values = dataset.train.y.numpy()
    return [draws.permutation(np.flatnonzero(values == value)) for value in np.unique(values)]


def _evened(
    kinds: list[Rows], partition: Partition, draws: np.random.Generator, sweeps: int = _SINKHORN_SWEEPS
) -> list[Rows]:
    """Each label's rows by its own Dirichlet draw, such that clients come out equal in size.

    Sinkhorn sweeps scale the shares A until every client has the same rows in all, sum_c n_c A[c, i] = n / N, where
    label c has n_c of the n rows and there are N clients; what rounding leaves is trimmed to the smallest client.
    """
    sizes = np.array([len(rows) for rows in kinds])
    shares = draws.dirichlet(np.full(partition.clients, partition.alpha), size=len(kinds))
    weights = (sizes / sizes.mean())[:, None]
    if shares.min() == 0:  # an alpha so small that shares underflow, after which labels would look alike
        shares = _evened_logarithms(partition, weights, draws)
    for sweep in range(sweeps):
        if sweep >= _SINKHORN_SWEEPS and _unevenness(weights * shares) <= _UNEVEN:
            break
        shares = shares / (weights * shares).sum(0)
        shares = shares / shares.sum(1, keepdims=True)
    pieces = [np.split(rows, _cuts(share, len(rows))) for rows, share in zip(kinds, shares, strict=True)]
    owned = [draws.permutation(np.concatenate(parts)) for parts in zip(*pieces, strict=True)]
    smallest = min(len(rows) for rows in owned)
    require(
        smallest >= partition.smallest,
        f"The {partition.kind} partition leaves a client with {smallest} rows, fewer than {partition.min_rows}: choose "
        "fewer clients or a larger alpha.",
    )
    return [rows[:smallest] for rows in owned]


def _evened_logarithms(
    partition: Partition, weights: NDArray[np.float64], draws: np.random.Generator
) -> NDArray[np.float64]:
    """Dirichlet shares by Sinkhorn sweeps over their logarithms, which hold ratios that the shares cannot.

    For G ~ Gamma(alpha + 1) and a uniform U, G U^(1 / alpha) is Gamma(alpha); Dirichlet draws are Gamma draws over
    their sum. At the smallest alpha every client has one label as far as sizes allow, and sweeps still converge.
    """
    shape, alpha = (len(weights), partition.clients), max(partition.alpha, _SMALLEST_ALPHA)
    logs = np.log(draws.gamma(alpha + 1, size=shape)) + np.log(1 - draws.random(shape)) / alpha
    for _ in range(_MORE_SWEEPS):
        logs = logs - np.logaddexp.reduce(np.log(weights) + logs, axis=0)
        logs = logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)
        if _unevenness(weights * np.exp(logs)) <= _UNEVEN:
            break
    return np.maximum(np.exp(logs), np.finfo(float).tiny)


def _unevenness(rows: NDArray[np.float64]) -> float:
    """The largest relative deviation of a client's rows from an equal share."""
    owned = rows.sum(0)
    return float(np.abs(owned / owned.mean() - 1).max())


def _silos(dataset: Dataset, min_rows: int) -> list[Tensor]:
    """The owners that the data names."""
    import torch

    if dataset.owners is None:
        raise UserError(
            f"The data {dataset.task.name!r} does not say who owns a row: name its owner column, or choose another "
            "partition."
        )
    owner = dataset.owners[0]
    order = owner.argsort(stable=True)  # rows of an owner stay in their order; -1 is nobody
    counts = owner[owner >= 0].bincount(minlength=len(dataset.owner_names))
    owned = list(torch.split(order[len(owner) - int(counts.sum()) :], counts.tolist()))
    small = [name for name, rows in zip(dataset.owner_names, owned, strict=True) if len(rows) < min_rows]
    if small:
        least, more = int(counts.min()), f" and {len(small) - 5:,} more" * (len(small) > 5)
        raise UserError(
            f"Of the owners, {', '.join(map(repr, small[:5]))}{more} have fewer than {min_rows} training rows: lower "
            f"min_rows to {least} to take all owners, or merge these with others or leave them out."
        )
    return owned


def _cuts(shares: NDArray[np.float64], size: int) -> Rows:
    """Where to cut a list of `size` rows so that the pieces have these shares."""
    return np.minimum(np.floor(np.cumsum(shares)[:-1] * size), size).astype(np.int64)


_KINDS: dict[str, Callable[[Dataset, Partition, np.random.Generator], list[Rows]]] = {
    "plain": _dirichlet,
    "even": _even,
    "balanced": _balanced,
    "group": _dirichlet,
    "iid": _iid,
}
