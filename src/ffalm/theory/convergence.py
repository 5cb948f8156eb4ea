"""The measured convergence rate of federated descent on a problem that meets the theorem's assumptions.

Levels of heterogeneity and seeds are axes of one array, so that a round costs the same few operations however many
there are. The levels share their noise, so that they are compared under the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffalm.theory.constants import Constants
from ffalm.theory.numeric import Array
from ffalm.theory.problem import CLIENTS, CONCAVITY, DIMENSIONS, DUALS, MODELS, NOISE, Problem, hill_slope

LEVELS = (0.0, 0.5, 1.0)
ROUNDS = 30_000
SEEDS = 64

#: Slopes are fitted over the last so many factors of ten in the number of rounds.
DECADES = 1.5

_START = (-2.0, 2.0)
_BLOCK = 250  # rounds whose noise is drawn at once
_POINTS_PER_DECADE = 12


@dataclass(frozen=True)
class Curve:
    """The measurements at one level of heterogeneity, a row per seed and a column per recorded round."""

    problem: Problem
    constants: Constants
    local_steps: int
    rounds: list[int]
    gaps: Array  # R(w_t) - R*
    dual_errors: Array  # (dual - best dual at w_t)^2

    @property
    def potentials(self) -> Array:
        """The proof's a_t + nu_t b_t with nu_t = 2 L^2 eta_w / (rho eta_l), of which the theorem bounds the mean."""
        constants = self.constants
        ratio = [model_step(constants, number) / constants.dual_step(number) for number in self.rounds]
        return self.gaps + 2 * constants.smoothness**2 / constants.concavity * np.array(ratio) * self.dual_errors


@dataclass(frozen=True)
class Slope:
    """The exponent of a power of the number of rounds, with a 95 % interval over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def model_step(constants: Constants, round: int) -> float:
    """The theorem's step, kept below the limit that its proof needs."""
    return min(constants.largest_step, constants.model_step(round))


def descend(
    levels: Sequence[float] = LEVELS,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
    local_steps: int = 1,
) -> list[Curve]:
    """Run every level with every seed from the same start, with noisy gradients and all clients taking part."""
    problems = [Problem(level) for level in levels]
    constants = [problem.constants() for problem in problems]
    marks = marked_rounds(rounds)
    models = np.tile(np.array(_START)[:, None, None], (1, len(levels), seeds))
    duals = np.zeros((len(levels), seeds))
    gaps = np.empty((len(levels), seeds, len(marks)))
    errors = np.empty_like(gaps)
    federation = _Federation(problems, local_steps)
    for number, noise in zip(range(1, rounds + 1), _noise(rounds, seeds, local_steps), strict=True):
        model_steps = np.array([model_step(each, number) for each in constants]) / local_steps
        dual_steps = np.array([each.dual_step(number) for each in constants])
        models, duals = federation.round(models, duals, model_steps, dual_steps, noise)
        if number in marks:
            at = marks.index(number)
            for level, problem in enumerate(problems):
                reached = models[:, level].T
                gaps[level, :, at] = problem.primal_risk(reached) - problem.least
                errors[level, :, at] = (duals[level] - problem.best_dual(reached)) ** 2
    return [
        Curve(problem, each, local_steps, marks, gaps[level], errors[level])
        for level, (problem, each) in enumerate(zip(problems, constants, strict=True))
    ]


class _Federation:
    """The clients of all levels at once. Axes are component, client, level, seed: sums go over the first ones, which
    numpy does several times faster than over the last.
    """

    def __init__(self, problems: Sequence[Problem], local_steps: int) -> None:
        self._centres = np.stack([problem.centres.T for problem in problems], axis=-1)[..., None]
        self._couplings = np.stack([problem.couplings.T for problem in problems], axis=-1)[..., None]
        self._offsets = np.stack([problem.offsets for problem in problems], axis=-1)[..., None]
        self._local_steps = local_steps

    def round(
        self, models: Array, duals: Array, model_steps: Array, dual_steps: Array, noise: Array
    ) -> tuple[Array, Array]:
        """Local descent on the received dual, then ascent on the dual at the trained models, then both averages."""
        local = models[:, None]
        pull = duals * self._couplings
        for step in range(self._local_steps):
            slope = hill_slope(local - self._centres) + pull + noise[step, :DIMENSIONS]
            local = np.clip(local - model_steps[:, None] * slope, *MODELS)
        violation = (local * self._couplings).sum(0) - self._offsets + noise[-1, DIMENSIONS]
        ascent = violation.mean(0) - CONCAVITY * duals
        return local.mean(1), np.clip(duals + dual_steps[:, None] * ascent, *DUALS)


def _noise(rounds: int, seeds: int, local_steps: int) -> Iterator[Array]:
    """Each round's noise: local step, component, client, level (one for all), seed."""
    generator = np.random.default_rng([seeds, local_steps])
    for first in range(0, rounds, _BLOCK):
        shape = (min(_BLOCK, rounds - first), local_steps, DIMENSIONS + 1, CLIENTS, 1, seeds)
        yield from NOISE * generator.standard_normal(shape)


def marked_rounds(rounds: int) -> list[int]:
    """Rounds spread evenly over the factors of ten, the last one included."""
    count = int(np.log10(rounds) * _POINTS_PER_DECADE) + 1
    return sorted({int(number) for number in np.geomspace(1, rounds, count).round()})


def slope(rounds: Sequence[int], values: Array, resamples: int = 1000) -> Slope:
    """The least-squares line through log(mean over seeds) against log(rounds), with a bootstrap over the seeds."""
    late = np.array(rounds) >= rounds[-1] / 10**DECADES
    x = np.log(np.array(rounds)[late])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    kept = values[:, late]
    draws = np.random.default_rng(0).integers(len(kept), size=(resamples, len(kept)))
    drawn = np.log(kept[draws].mean(1)) @ weights
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Slope(float(np.log(kept.mean(0)) @ weights), float(low), float(high))
