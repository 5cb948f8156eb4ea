"""The section `[secure]` of `federation.toml`: how answers are hidden in sums if the rule `secure` is on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ffalm.algorithms import Algorithm
from ffalm.errors import require
from ffalm.settings import check_ranges, setting


@dataclass(frozen=True)
class Secure:
    """How single answers are hidden in sums, and within which bounds numbers must lie to be summed."""

    threshold: float = setting(0.6, "Share of a site's circle that must answer to the end.", above=0.5, most=1)
    neighbours: int = 32  # the number of others with which a site shares masks; all, if there are no more
    bits: Literal[32, 64] = 32  # in which one entry of the model travels
    model_range: float = setting(16.0, "How far one entry of the model may move in a round.", above=0)
    state_range: float = setting(1e6, "Largest of the duals and whatever else the server keeps.", above=0)
    loss_range: float = setting(1e9, "Largest of losses and sums of losses.", above=0)

    def __post_init__(self) -> None:
        require(
            self.neighbours >= 2 and self.neighbours % 2 == 0,
            f"The setting 'neighbours' of secure aggregation must be an even number from 2; got {self.neighbours}.",
        )
        check_ranges(self, "secure aggregation")


def check_summable(algorithm: Algorithm) -> None:
    """Raise `UserError` if the algorithm needs single sites' answers at the server."""
    require(
        algorithm.needs_only_sums,
        f"{algorithm.title} needs every site's own answer at the coordinator, which secure aggregation hides: choose "
        "an algorithm that needs only sums, such as ffalm, fpfl or fedavg, or set secure = false under [rules] in "
        "federation.toml.",
    )
