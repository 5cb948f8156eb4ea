"""The theorem's bound: its remainder by term, as printed and as the lemmas give it, and its limit.

Multiplying the proof's recursion by the round t gives t A_(t+1) <= (t - 1) A_t + remainder(t), with A_t the potential
a_t + nu_t b_t. Here the remainder is computed from the lemmas by putting the steps in, to hold the printed one to it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ffalm.theory.constants import PAPER, Constants

#: The example with gradient noise of size 1, which the paper leaves at none and which would hide half of the terms.
NOISY = replace(PAPER, model_noise=1.0, dual_noise=1.0)


def contraction(constants: Constants, round: int, local_steps: int = 1) -> float:
    """k_2, by which the dual's error shrinks in a round with the printed nu_t; from 1 on it does not shrink."""
    return 1 - (2 - local_steps) * constants.concavity * constants.dual_step(round) / 4


def remainder(constants: Constants, round: int, local_steps: int = 1) -> dict[str, float]:
    """t c_t of the lemmas, by term."""
    step, dual_step = constants.model_step(round), constants.dual_step(round)
    smooth, concave = constants.smoothness, constants.concavity
    young = concave * dual_step / (2 * (1 - concave * dual_step))
    weight = 2 * smooth**2 * step / (concave * dual_step)
    size = constants.model_noise**2 + constants.gradient**2
    terms = {
        "model noise": constants.primal_smoothness * step**2 / 2 * local_steps**2 * constants.model_noise**2,
        "drift": step**3 * smooth**2 * local_steps * (local_steps + 1) / 4 * size,
        "tracking": weight * (1 + 1 / young) * smooth**2 * local_steps * step**2 / concave**2 * size,
        "dual noise": weight * (1 + young) * dual_step**2 * constants.dual_noise**2,
        "dissimilarity": step * constants.dissimilarity / (2 * constants.stretch),
        "heterogeneity": -constants.pl / constants.stretch * step * constants.heterogeneity,
    }
    return {name: round * term for name, term in terms.items()}


def printed_remainder(constants: Constants, round: int, local_steps: int = 1) -> dict[str, float]:
    """The same as the paper prints it."""
    smooth, concave, pl, stretch = constants.smoothness, constants.concavity, constants.pl, constants.stretch
    size = constants.model_noise**2 + constants.gradient**2
    power = math.pow(round, 2 / 3)
    ascent = 4 * stretch * smooth**2 / (pl * concave**2)
    noise = 4 * stretch**2 * local_steps**2 * constants.model_noise**2 * constants.primal_smoothness
    return {
        "model noise": noise / (pl**2 * round),
        "drift": smooth**2 * local_steps * (local_steps + 1) * 8 * stretch**3 / (pl**3 * round**2) * size,
        "tracking": 2 * smooth**4 * local_steps * stretch**3 / (concave**2 * pl**3 * power),
        "dual noise": ascent / power + ascent / (power - 4),
        "dissimilarity": constants.dissimilarity / pl,
        "heterogeneity": -constants.heterogeneity / 2,
    }


def printed_floor(constants: Constants) -> float:
    """What the printed bound tends to: kappa^2 / mu - Gamma / 2."""
    return constants.dissimilarity / constants.pl - constants.heterogeneity / 2


def floor(constants: Constants) -> float:
    """What the corrected bound tends to: kappa^2 / mu - 2 Gamma."""
    return constants.dissimilarity / constants.pl - 2 * constants.heterogeneity


def printed_bound(constants: Constants, rounds: int, local_steps: int = 1) -> float:
    """The last line of the paper's proof."""
    smooth, concave, pl, stretch = constants.smoothness, constants.concavity, constants.pl, constants.stretch
    size = constants.model_noise**2 + constants.gradient**2
    power = math.pow(rounds, 2 / 3)
    ascent = 12 * stretch * smooth**2 / (pl * concave**2)
    noise = 4 * stretch**2 * local_steps**2 * constants.model_noise**2 * constants.primal_smoothness
    return (
        noise * math.log(rounds) / (pl**2 * rounds)
        + smooth**2 * local_steps * (local_steps + 1) * 8 * stretch**3 / (pl**3 * rounds**2) * size
        + 6 * smooth**4 * local_steps * stretch**3 / (concave**2 * pl**3 * power)
        + ascent / power
        + ascent / (power - 4)
        + printed_floor(constants)
    )


def first_round(constants: Constants) -> int:
    """The round from which every step of the proof is lawful, and from which its induction may start."""
    halved = 23  # rho eta_l <= 1/2 from here on, so that 1 + epsilon <= 3/2
    return max(constants.first_lawful_round, constants.first_fast_dual_round, constants.first_decaying_round, halved)


def bound(constants: Constants, rounds: int, start: float) -> float:
    """The corrected bound for one local step, given the potential with which the first lawful round is entered.

    Its last two terms do not vanish. Where R itself has the PL property, they may be dropped (with R's constant for
    mu / beta^2), and what is left is the theorem's O(T^(-2/3)).
    """
    smooth, concave, pl, stretch = constants.smoothness, constants.concavity, constants.pl, constants.stretch
    size = constants.model_noise**2 + constants.gradient**2
    noise = 2 * constants.primal_smoothness * stretch**2 * constants.model_noise**2 / pl**2
    tracking = 6 * smooth**4 * stretch**3 * size / (concave**2 * pl**3)
    dual_noise = 72 * smooth**2 * stretch * constants.dual_noise**2 / (pl * concave**2)
    return (
        (first_round(constants) - 1) * start / rounds
        + noise * (1 + math.log(rounds)) / rounds
        + (tracking + dual_noise) / math.pow(rounds, 2 / 3)
        + floor(constants)
    )
