"""The constants of the paper's assumptions, under names that mean one thing each.

The paper calls several of them by letters that it uses for other things too: its beta is also the penalty, its kappa
is also L / mu, its mu is also a group's loss. Here every one has a name of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the theorem assumes of a federated minimax problem."""

    smoothness: float  # L: how fast the gradients of every F_i may change
    concavity: float  # rho: every F_i is strongly concave in the dual with it
    pl: float  # mu: the Polyak-Lojasiewicz constant of every F_i in the model
    gradient: float  # G: the largest norm of a client's model gradient
    dissimilarity: float  # kappa^2: how far mean square and square of the mean of the clients' gradients may differ
    heterogeneity: float  # Gamma = F* - sum_i p_i F_i*
    stretch: float = 1.0  # beta^2: the factor on the square of the mean in the bounded dissimilarity
    model_noise: float = 0.0  # B_w: standard deviation of a client's stochastic model gradient
    dual_noise: float = 0.0  # B_lambda: the same of its dual gradient

    @property
    def primal_smoothness(self) -> float:
        """L + L^2 / rho, the smoothness of the primal risk R(w) = max over the dual of F(w, dual)."""
        return self.smoothness + self.smoothness**2 / self.concavity

    @property
    def largest_step(self) -> float:
        """The model step above which the proof's descent lemma no longer holds."""
        return 1 / self.primal_smoothness

    def model_step(self, round: int) -> float:
        """The theorem's 2 beta^2 / (mu t), without the limit that its proof needs."""
        return 2 * self.stretch / (self.pl * round)

    def dual_step(self, round: int) -> float:
        """The proof's min(1 / L, 4 / (rho t^(2/3)))."""
        return min(1 / self.smoothness, 4 / (self.concavity * math.pow(round, 2 / 3)))

    @property
    def first_lawful_round(self) -> int:
        """The first round whose model step obeys the limit."""
        return _first(self.primal_smoothness * 2 * self.stretch / self.pl)

    @property
    def first_fast_dual_round(self) -> int:
        """The first round at which the dual step is as long as the proof needs, 2 mu / (rho beta^2) model steps."""
        return _first(4 * self.smoothness / self.concavity)

    @property
    def first_decaying_round(self) -> int:
        """The first round at which the dual step is 4 / (rho t^(2/3)), the only form that the proof's sums use."""
        return _first((4 * self.smoothness / self.concavity) ** 1.5)


def _first(bound: float) -> int:
    """The first whole round that is not below a bound; one that misses a whole number by rounding counts as it."""
    nearest = round(bound)
    return nearest if abs(nearest - bound) < 1e-9 * bound else int(bound) + 1


#: What the paper says of its example.
PAPER = Constants(
    smoothness=18.0,
    concavity=1.0,
    pl=1 / 8,
    gradient=11.0,
    dissimilarity=3.7**2,
    heterogeneity=-14.72,
)
