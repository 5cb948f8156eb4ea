"""Where the paper's equations and proof go wrong, each erratum with numbers that show it.

The functions compute; `errata` puts their numbers into the sentences of `errata.toml`, and a test checks that
`docs/theory.md` has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ffalm.system import toml
from ffalm.theory import bound, two_clients
from ffalm.theory.constants import PAPER, Constants
from ffalm.theory.numeric import GRID, Array, smallest


@dataclass(frozen=True)
class Erratum:
    """One erratum: where it is, the correction, and the numbers that show it."""

    where: str
    correction: str
    shown: str


def dual_ascents() -> tuple[float, float]:
    """The dual's ascent measured at the clients' own models, and at their average, which no client has yet.

    Two clients with losses (w - c)^2 / 2 and gaps b w, c = b = 1 and -1, after one step of 0.5 from w = 0.
    """
    centres = couplings = np.array([1.0, -1.0])
    local = 0.5 * centres
    return float((couplings * local).mean()), float((couplings * local.mean()).mean())


def row_weights(dual: float, penalty: float = 2.0) -> tuple[float, float]:
    """What a row of either group weighs in the gradient of the augmented Lagrangian on a batch of four.

    The losses are 0.2 and 0.4 in group 0, 0.6 and 1.0 in group 1; so the gap of their means is -0.5.
    """
    pull = dual + penalty * _GAP
    return 1 / 4 + pull / 2, 1 / 4 - pull / 2


_GAP = -0.5


def moved_dual(dual: float = 0.7, step: float = 2.0) -> float:
    """The dual that the client computes after training on that batch."""
    return dual + step * _GAP


def largest_lagrangian(bounds: float, decay: float = 0.0, penalty: float = 2.0) -> float:
    """The largest augmented Lagrangian of that batch over duals of a size, less decay / 2 dual^2 where there is one."""
    duals: Array = np.linspace(-bounds, bounds, 200_001)
    values = 0.55 + duals * _GAP + penalty / 2 * _GAP**2 - decay / 2 * duals**2
    return float(values.max())


def drift(local_steps: int, step: float, model: float, constants: Constants | None = None) -> tuple[float, float]:
    """Both sides of the drift lemma as printed, left <= right, on the example without noise and at the best dual.

    One gradient is set against the sum of E, and Jensen's inequality is used twice without its factors. The constants
    are the best possible ones unless given.
    """
    measured = (_slope(model) - _local_slopes(local_steps, step, model)) ** 2
    return measured, _drift_scale(step, constants) * local_steps * (local_steps + 1) / 2


def corrected_drift(local_steps: int, step: float, model: float) -> tuple[float, float]:
    """The corrected lemma: E gradients against E."""
    measured = (local_steps * _slope(model) - _local_slopes(local_steps, step, model)) ** 2
    return measured, _drift_scale(step) * local_steps**2 * (local_steps - 1) * (2 * local_steps - 1) / 6


def _slope(model: float) -> float:
    return float(two_clients.slope(np.asarray(model)))


def _local_slopes(local_steps: int, step: float, model: float) -> float:
    """The sum of the slopes along the local steps, averaged over the clients."""
    total = 0.0
    for client in two_clients.CLIENTS:
        local = np.asarray(model)
        for _ in range(local_steps):
            slope = client.slope(local)
            total += float(slope) / len(two_clients.CLIENTS)
            local = local - step * slope
    return total


def _drift_scale(step: float, constants: Constants | None = None) -> float:
    constants = constants or two_clients.best_constants()
    return (step * constants.smoothness * constants.gradient) ** 2


def common_dual() -> tuple[float, float]:
    """Both sides of the PL lemma's third inequality, left <= right, on a pair of clients for which it fails.

    F_1 = w^2/2 + l - l^2/2 and F_2 = w^2/2 - l + l w - l^2/2, so that the dual w/2 maximises their mean; at w = 0.
    """
    at_zero = [smallest(lambda w: w**2 / 2, -3, 3)[1]] * 2
    first = smallest(lambda w: w**2 / 2 + w / 2 - (w / 2) ** 2 / 2, -3, 3)[1]
    second = smallest(lambda w: w**2 / 2 - w / 2 + w / 2 * w - (w / 2) ** 2 / 2, -3, 3)[1]
    return sum(at_zero) / 2, (first + second) / 2


def own_maximiser() -> tuple[float, float]:
    """Both sides of the dual lemma's fifth inequality, left <= right, on the example at the best dual.

    It takes the best dual of F for that of every F_i: mean of F_i(w, dual) - F_i(w, best dual) against
    -1 / (2 L) times the mean square of the clients' dual gradients, which are not 0 there.
    """
    squares = [(2 * (two_clients.BEST_DUAL - client.dual_centre)) ** 2 for client in two_clients.CLIENTS]
    return 0.0, -sum(squares) / len(squares) / (2 * PAPER.smoothness)


def clipped_rest(clip: float = 1.0) -> list[tuple[float, float]]:
    """The stretches of models on which the clipped slopes of the example's clients cancel exactly."""
    models = np.linspace(*two_clients.MODELS, GRID)
    first, second = (np.clip(client.slope(models), -clip, clip) for client in two_clients.CLIENTS)
    ends = models[np.flatnonzero(np.diff((first + second == 0).astype(int)))]
    return [(float(low), float(high)) for low, high in ends.reshape(-1, 2)]


def term_ratios(round: int = 1_000_000) -> dict[str, float]:
    """What the lemmas give for each term of the remainder, over what is printed, on the example with unit noise."""
    true, printed = bound.remainder(bound.NOISY, round), bound.printed_remainder(bound.NOISY, round)
    return {name: true[name] / printed[name] for name in true}


def errata() -> list[Erratum]:
    """All of them, in the paper's order; the sentences are in `errata.toml`."""
    numbers = _numbers()
    return [
        Erratum(one["where"], one["correction"], one["shown"].format(**numbers))
        for one in toml.beside(__file__)["erratum"]
    ]


def _numbers() -> dict[str, Any]:
    """The numbers of the sentences, by name."""
    tight, step = two_clients.best_constants(), 1e-4
    best, other = two_clients.saddles()
    limit = PAPER.dissimilarity / PAPER.pl
    return {
        "ascents": dual_ascents(),
        "weights": row_weights(0.7),
        "moved_dual": moved_dual(),
        "late_weights": row_weights(moved_dual()),
        "unbounded": ", ".join(f"{largest_lagrangian(size):.1f}" for size in (1.0, 10.0, 100.0)),
        "bounded": largest_lagrangian(100, 1),
        "common_dual": common_dual(),
        "common_gamma": two_clients.gamma_of_the_common_dual(),
        "gamma": two_clients.gamma(),
        "step": step,
        "drift": drift(5, step, 2.0),
        "paper_drift": drift(5, step, 2.0, PAPER)[1],
        "contractions": [bound.contraction(PAPER, 10_000, steps) for steps in (1, 2, 5)],
        "own_maximiser": own_maximiser(),
        "dissimilarity": limit,
        "twice_dissimilarity": 2 * limit,
        "ends": [bound.printed_bound(PAPER, 10**power) for power in (12, 15, 18)],
        "apart": other.value - best.value,
        "per_gamma": bound.remainder(PAPER, 10_000)["heterogeneity"] / -PAPER.heterogeneity,
        "floor": bound.floor(PAPER),
        "printed_floor": bound.printed_floor(PAPER),
        "tight_floor": bound.floor(tight),
        "ratios": ", ".join(f"{name} {ratio:.3g}" for name, ratio in term_ratios().items()),
        "early": ", ".join(f"{round(number ** (2 / 3) - 4)} at t = {number}" for number in (1, 8)),
        "first_round": bound.first_round(PAPER),
        "paper": PAPER,
        "tight": tight,
        "rest": " and ".join(f"from {low:.2f} to {high:.2f}" for low, high in clipped_rest()),
    }
