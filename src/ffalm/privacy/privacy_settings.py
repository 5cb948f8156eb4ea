"""How much noise, relative to how far one client can move a result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ffalm.errors import require


@dataclass(frozen=True)
class Privacy:
    """The settings of the mechanisms.

    Noise is counted in units of a client's largest contribution, so that every mechanism with the multiplier z costs
    the same: replacing a client moves its result by at most 2/z standard deviations. More noise, less epsilon.
    """

    # of the model: standard deviation over clip * largest client weight; 0 protects nothing
    noise: float = field(metadata={"help": "Noise multiplier; giving it turns differential privacy on."})
    # over all floating numbers of the model
    clip: float = field(
        default=1.0, metadata={"help": "Largest norm of a client's model update.", "flag": "privacy_clip"}
    )
    tally_noise: float | None = None  # of what clients report for the duals; None: as much as `noise`
    state_clip: float = 0.1  # largest norm of a client's own step of the duals, where they are averaged
    loss_bound: float = 2.0  # where single Tallies are needed: the mean loss of a (label, group) cell counts up to this
    # well below 1 / number of clients
    delta: float = field(default=1e-5, metadata={"help": "Delta for which epsilon is reported."})

    def __post_init__(self) -> None:
        for name in ("noise", "tally_noise"):
            value = getattr(self, name)
            require(
                value is None or (math.isfinite(value) and value >= 0),
                f"The privacy setting {name!r} must be 0 or more; got {value}.",
            )
        for name in ("clip", "state_clip", "loss_bound"):
            value = getattr(self, name)
            require(
                math.isfinite(value) and value > 0,
                f"The privacy setting {name!r} must be a number above 0; got {value}.",
            )
        require(0 < self.delta < 1, f"The privacy setting 'delta' must lie between 0 and 1; got {self.delta}.")

    @property
    def of_tallies(self) -> float:
        """The noise multiplier of what clients report for the duals."""
        return self.noise if self.tally_noise is None else self.tally_noise
