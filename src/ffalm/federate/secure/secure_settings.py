"""The section `[secure]` of `federation.toml`; its presence turns secure aggregation on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ffalm.algorithms import Algorithm
from ffalm.errors import require
from ffalm.settings import check_ranges


@dataclass(frozen=True)
class Secure:
    """How single answers are hidden in sums, and within which bounds numbers must lie to be summed."""

    threshold: float = 0.6  # share of a site's circle that must answer to the end; above a half, see `docs/privacy.md`
    neighbours: int = 32  # with how many others a site shares masks; all of them where there are no more
    bits: Literal[32, 64] = 32  # in which one entry of the model travels
    model_range: float = field(default=16.0, metadata={"above": 0})  # how far one entry may move in a round
    state_range: float = field(default=1e6, metadata={"above": 0})  # of the duals and whatever else the server keeps
    loss_range: float = field(default=1e9, metadata={"above": 0})  # of losses and sums of losses

    def __post_init__(self) -> None:
        require(
            0.5 < self.threshold <= 1,
            f"The setting 'threshold' of secure aggregation must be above 0.5 and at most 1; got {self.threshold}.",
        )
        require(
            self.neighbours >= 2 and self.neighbours % 2 == 0,
            f"The setting 'neighbours' of secure aggregation must be an even number from 2; got {self.neighbours}.",
        )
        check_ranges(self, "secure aggregation")


def check_summable(algorithm: Algorithm) -> None:
    """Raise `UserError` where the server must see single answers to do what the algorithm says."""
    require(
        algorithm.needs_only_sums,
        f"{algorithm.title} needs every site's own answer at the coordinator, which secure aggregation hides: choose "
        "an algorithm that averages by size, such as ffalm, fpfl or fedavg, or take [secure] out of federation.toml.",
    )
