"""How a coordinator deals with its sites: the section [rules] of `federation.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ffalm.errors import require


@dataclass(frozen=True)
class Rules:
    """How the coordinator deals with missing, slow, unsuitable or deviating sites."""

    min_sites: int = 2  # usable updates that a round needs; with fewer, wait and ask again
    deadline: float = 600.0  # seconds that a site has to answer in a round
    patience: float = 600.0  # seconds to wait for enough sites before stopping with the state kept
    misfit: Literal["go_on", "wait"] = "go_on"  # with a site whose file does not fit: leave it out, or wait for a fix
    min_group: int = 10  # fewest rows for a site to tell a (label, group) cell, or to name a value
    outlier: float = 10.0  # an update whose norm is this many times the others' median is quarantined
    aggregation: Literal["mean", "clip", "trimmed", "median", "krum"] = "mean"  # how answers are put together
    liars: int = 1  # how many sites 'trimmed' and 'krum' assume to lie
    max_share: float = 1.0  # the largest share of a site in means by rows
    secure: bool = False  # the coordinator sees sums over sites and no single answer; the section [secure] says how

    def __post_init__(self) -> None:
        require(self.min_sites >= 1, f"The rule 'min_sites' must be at least 1; got {self.min_sites}.")
        require(self.deadline > 0, f"The rule 'deadline' must be above 0 seconds; got {self.deadline}.")
        require(self.patience >= 0, f"The rule 'patience' must be 0 seconds or more; got {self.patience}.")
        require(self.min_group >= 0, f"The rule 'min_group' must be 0 rows or more; got {self.min_group}.")
        require(self.outlier > 1, f"The rule 'outlier' must be above 1; got {self.outlier}.")
        require(self.liars >= 1, f"The rule 'liars' must be at least 1; got {self.liars}.")
        require(0 < self.max_share <= 1, f"The rule 'max_share' must be above 0 and at most 1; got {self.max_share}.")
