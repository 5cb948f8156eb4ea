"""The paper's example of two clients, in which descent may end at the worse of two saddle points.

    F_1(w, l) = (w - 1)^2 + 2   sin^2(w - 2) - (l - 4)^2
    F_2(w, l) = (w + 1)^2 + 2.1 sin^2(w + 2) - (l + 4)^2        F = (F_1 + F_2) / 2

on the box of models w in [-3, 3] and duals l in [-5, 5].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffalm.theory.constants import Constants
from ffalm.theory.numeric import Array, largest, roots, smallest

#: The models and the duals of the box.
MODELS = (-3.0, 3.0)
DUALS = (-5.0, 5.0)


@dataclass(frozen=True)
class Client:
    """(w - centre)^2 + height sin^2(w - phase) - (l - dual_centre)^2."""

    centre: float
    height: float
    phase: float
    dual_centre: float

    def value(self, model: Array, dual: Array | float) -> Array:
        """The local risk."""
        return self.primal(model) - (dual - self.dual_centre) ** 2

    def primal(self, model: Array) -> Array:
        """The largest local risk over the duals, which the client's own dual attains."""
        return (model - self.centre) ** 2 + self.height * np.sin(model - self.phase) ** 2

    def slope(self, model: Array) -> Array:
        """The derivative by the model; no dual appears in it."""
        return 2 * (model - self.centre) + self.height * np.sin(2 * (model - self.phase))

    def curvature(self, model: Array) -> Array:
        """The second derivative by the model."""
        return 2 + 2 * self.height * np.cos(2 * (model - self.phase))

    def steepest(self) -> float:
        """The largest size of the slope on the box."""
        return largest(lambda model: np.abs(self.slope(model)), *MODELS)[1]

    def sharpest(self) -> float:
        """The largest size of the curvature on the box."""
        return largest(lambda model: np.abs(self.curvature(model)), *MODELS)[1]

    def best(self) -> tuple[float, float]:
        """The client's best model and F_i*, the least value of its primal risk."""
        places = np.array([*MODELS, *roots(self.slope, *MODELS)])
        values = self.primal(places)
        least = int(np.argmin(values))
        return float(places[least]), float(values[least])

    def pl_constant(self) -> float:
        """The largest mu with slope^2 / 2 >= mu (F_i - F_i*) on the box; at the minimum itself both sides are 0."""
        _, least = self.best()

        def ratio(model: Array) -> Array:
            above = self.primal(model) - least
            return np.where(above > 1e-7, self.slope(model) ** 2 / 2 / np.maximum(above, 1e-7), np.inf)

        return smallest(ratio, *MODELS)[1]


CLIENTS = (Client(1.0, 2.0, 2.0, 4.0), Client(-1.0, 2.1, -2.0, -4.0))


def risk(model: Array, dual: Array | float) -> Array:
    """F, the mean of the clients' risks."""
    return sum((client.value(model, dual) for client in CLIENTS), np.zeros(())) / len(CLIENTS)


def slope(model: Array) -> Array:
    """The derivative of F by the model."""
    return sum((client.slope(model) for client in CLIENTS), np.zeros(())) / len(CLIENTS)


def curvature(model: Array) -> Array:
    """The second derivative of F by the model; by the dual it is -2, and the mixed one is 0."""
    return sum((client.curvature(model) for client in CLIENTS), np.zeros(())) / len(CLIENTS)


#: The dual that maximises F, whatever the model.
BEST_DUAL = sum(client.dual_centre for client in CLIENTS) / len(CLIENTS)


def primal_risk(model: Array) -> Array:
    """R(w), the largest F over the duals."""
    return risk(model, BEST_DUAL)


@dataclass(frozen=True)
class Stationary:
    """A point at which F is stationary, always with the dual 0: a saddle of the game, or a barrier between two."""

    model: float
    value: float
    curvature: float

    @property
    def is_saddle(self) -> bool:
        """Whether the second-derivative test finds a minimum in the model; in the dual it is always a maximum."""
        return self.curvature > 0


def stationary() -> list[Stationary]:
    """All stationary points of F in the box, from left to right."""
    places = np.array(roots(slope, *MODELS))
    values, curvatures = primal_risk(places), curvature(places)
    return [Stationary(*map(float, point)) for point in zip(places, values, curvatures, strict=True)]


def saddles() -> list[Stationary]:
    """The saddle points, the best first."""
    return sorted((point for point in stationary() if point.is_saddle), key=lambda point: point.value)


def gamma(weighted: bool = True) -> float:
    """F* - sum_i p_i F_i*, or, as the paper must have computed it, with the F_i* added up without the shares p_i."""
    total = sum(client.best()[1] for client in CLIENTS)
    return saddles()[0].value - (total / len(CLIENTS) if weighted else total)


def gamma_of_the_common_dual() -> float:
    """F* - sum_i p_i min F_i(., best dual of F): Gamma as the printed proof's third inequality would define it."""
    least = [client.best()[1] - (BEST_DUAL - client.dual_centre) ** 2 for client in CLIENTS]
    return saddles()[0].value - sum(least) / len(CLIENTS)


def best_constants() -> Constants:
    """The best possible constants of the example on its box."""
    first, second = CLIENTS
    spread = largest(lambda model: ((first.slope(model) - second.slope(model)) / 2) ** 2, *MODELS)[1]
    dual_curvature = 2.0
    return Constants(
        smoothness=max(dual_curvature, *(client.sharpest() for client in CLIENTS)),
        concavity=dual_curvature,
        pl=min(client.pl_constant() for client in CLIENTS),
        gradient=max(client.steepest() for client in CLIENTS),
        dissimilarity=spread,
        heterogeneity=gamma(),
    )
