"""A federated minimax problem that meets every assumption of the theorem, with any level of heterogeneity.

    F_i(w, l) = sum_j phi(w_j - c_ij) + l (b_i . w - d_i) - rho / 2 l^2,     phi(x) = x^2 / 2 + 0.9 sin^2 x

phi is not convex, and a client's risk in w is phi tilted by l b_ij, which has one stationary point only and obeys the
Polyak-Lojasiewicz inequality as long as the tilt stays below 1.3; here it stays below 0.5. The dual term with its
curvature rho is what FFALM's own Lagrangian lacks: a constraint b . w = d with a quadratic pull of the dual to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffalm.theory.constants import Constants
from ffalm.theory.numeric import GRID, Array

SINE = 0.9
CONCAVITY = 1.0
MODELS = (-3.0, 3.0)
DUALS = (-1.0, 1.0)

#: Standard deviation of the noise in each of a client's gradient components.
NOISE = 1.0

CLIENTS, DIMENSIONS = 8, 2
_CENTRE, _COUPLING, _OFFSET = np.array([0.9, -0.4]), np.array([0.35, 0.3]), 0.6

#: Steps of 0.1 from the best point of a grid: enough to reach the last bit.
_DESCENT = 600


def hill(x: Array) -> Array:
    """phi, a parabola with a ripple."""
    return x**2 / 2 + SINE * np.sin(x) ** 2


def hill_slope(x: Array) -> Array:
    """The derivative of phi."""
    return x + SINE * np.sin(2 * x)


@dataclass(frozen=True)
class Problem:
    """The clients' risks at one level of heterogeneity: 0 makes the clients equal, 1 pulls them far apart."""

    level: float

    @cached_property
    def centres(self) -> Array:
        """c_i, on a circle around their mean."""
        return _CENTRE + self.level * _on_circle(2 * np.pi * np.arange(CLIENTS) / CLIENTS)

    @cached_property
    def couplings(self) -> Array:
        """b_i, on a smaller circle, run through at another pace so that c_i and b_i are not aligned."""
        return _COUPLING + 0.15 * self.level * _on_circle(2 * np.pi * 3 * np.arange(CLIENTS) / CLIENTS + 1)

    @cached_property
    def offsets(self) -> Array:
        """d_i, evenly spread."""
        return _OFFSET + self.level * np.linspace(-0.5, 0.5, CLIENTS)

    def best_dual(self, models: Array) -> Array:
        """The dual that maximises F at each model: the common constraint's violation, over rho."""
        best: Array = np.clip((models @ self.couplings.mean(0) - self.offsets.mean()) / CONCAVITY, *DUALS)
        return best

    def primal_risk(self, models: Array) -> Array:
        """R(w) = max over the dual of F(w, dual), for models along the last axis."""
        violation = models @ self.couplings.mean(0) - self.offsets.mean()
        dual = self.best_dual(models)
        fit = hill(models[..., None, :] - self.centres).sum(-1).mean(-1)
        risk: Array = fit + dual * violation - CONCAVITY / 2 * dual**2
        return risk

    def primal_slope(self, models: Array) -> Array:
        """The gradient of R, that of F at the best dual."""
        pull = self.best_dual(models)[..., None] * self.couplings.mean(0)
        slope: Array = hill_slope(models[..., None, :] - self.centres).mean(-2) + pull
        return slope

    @cached_property
    def least(self) -> float:
        """R*: the best point of a grid over the box, then descent from there to the last bit."""
        grid = _models(121)
        at = grid[np.argmin(self.primal_risk(grid))]
        for _ in range(_DESCENT):
            at = at - 0.1 * self.primal_slope(at)
        return float(self.primal_risk(at))

    def local_least(self) -> Array:
        """F_i* of every client, with the dual that suits the client itself, by the same means."""
        grid = _models(121)
        at = grid[np.argmin(self._own_risks(grid[:, None]), axis=0)]
        for _ in range(_DESCENT):
            dual = np.clip(((at * self.couplings).sum(-1) - self.offsets) / CONCAVITY, *DUALS)
            at = at - 0.1 * (hill_slope(at - self.centres) + dual[:, None] * self.couplings)
        return self._own_risks(at)

    def _own_risks(self, models: Array) -> Array:
        """Every client's risk at its own best dual, with the clients along the last axis but one of the models."""
        violation = (models * self.couplings).sum(-1) - self.offsets
        dual = np.clip(violation / CONCAVITY, *DUALS)
        risks: Array = hill(models - self.centres).sum(-1) + dual * violation - CONCAVITY / 2 * dual**2
        return risks

    def constants(self) -> Constants:
        """The best constants of the theorem's assumptions on the box, found numerically."""
        models, duals = _models(61), np.linspace(*DUALS, 21)
        slopes = hill_slope(models[:, None, :] - self.centres)[:, None] + duals[:, None, None] * self.couplings
        squares = (slopes**2).sum(-1)
        spread = squares.mean(-1) - (slopes.mean(-2) ** 2).sum(-1)
        curvature = 1 + 2 * SINE
        sharpest = max(_joint_curvature(curvature, float(np.linalg.norm(b))) for b in self.couplings)
        return Constants(
            smoothness=sharpest,
            concavity=CONCAVITY,
            pl=tilted_pl(float(np.abs(self.couplings).max()) * DUALS[1]),
            gradient=float(np.sqrt(squares.max())),
            dissimilarity=max(0.0, float(spread.max())),
            heterogeneity=self.least - float(self.local_least().mean()),
            model_noise=NOISE * DIMENSIONS**0.5,
            dual_noise=NOISE,
        )

    def primal_pl(self) -> float:
        """The Polyak-Lojasiewicz constant of R itself on the box, which the theorem does not assume."""
        grid = _models(241)
        above = self.primal_risk(grid) - self.least
        squares = (self.primal_slope(grid) ** 2).sum(-1)
        far = above > 1e-6
        return float((squares[far] / 2 / above[far]).min())


def tilted_pl(largest_tilt: float) -> float:
    """The Polyak-Lojasiewicz constant of phi(x) + tilt x over all tilts up to a size and all models that can occur.

    A risk that is a sum over coordinates has the least of its coordinates' constants.
    """
    x = np.linspace(-5, 5, GRID)
    constants = []
    for tilt in np.linspace(-largest_tilt, largest_tilt, 41):
        value, slope = hill(x) + tilt * x, hill_slope(x) + tilt
        above = value - value.min()
        far = above > 1e-4
        constants.append((slope[far] ** 2 / 2 / above[far]).min())
    return float(min(constants))


def _on_circle(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def _models(points: int) -> Array:
    """A grid over the box of models, one row per model."""
    axis = np.linspace(*MODELS, points)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, DIMENSIONS)


def _joint_curvature(curvature: float, coupling: float) -> float:
    """The largest eigenvalue of [[curvature, coupling], [coupling, -rho]]: the smoothness in model and dual at once."""
    return float(np.abs(np.linalg.eigvalsh([[curvature, coupling], [coupling, -CONCAVITY]])).max())
