"""Where the paper's equations and proof go wrong, each slip with numbers that show it.

The functions compute; `slips` puts their numbers into sentences, and a test holds `docs/theory.md` to those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffalm.theory import bound, two_clients
from ffalm.theory.constants import PAPER
from ffalm.theory.numeric import GRID, Array, smallest


@dataclass(frozen=True)
class Slip:
    """One slip: where it is, what ought to stand there, and what shows it."""

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


def drift(local_steps: int, step: float, model: float) -> tuple[float, float]:
    """Both sides of the drift lemma as printed, left <= right, on the example without noise and at the best dual.

    One gradient is set against the sum of E, and Jensen's inequality is used twice without its factors.
    """
    measured = (_slope(model) - _local_slopes(local_steps, step, model)) ** 2
    return measured, _drift_scale(step) * local_steps * (local_steps + 1) / 2


def corrected_drift(local_steps: int, step: float, model: float) -> tuple[float, float]:
    """The same as it should be: E gradients against E."""
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


def _drift_scale(step: float) -> float:
    constants = two_clients.best_constants()
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


def slips() -> list[Slip]:
    """All of them, in the paper's order."""
    return [*_equation_slips(), *_lemma_slips(), *_theorem_slips()]


def _equation_slips() -> list[Slip]:
    own, average = dual_ascents()
    right, wrong = row_weights(0.7), row_weights(moved_dual())
    sizes = (1.0, 10.0, 100.0)
    linear = ", ".join(f"{largest_lagrangian(size):.1f}" for size in sizes)
    return [
        Slip(
            "Dual update: the gap is taken at w_t, the average, which exists only after the clients have sent theirs.",
            "Each client measures it at its own trained model w_(i,t).",
            f"Two clients pulling apart: an ascent of {own:g} at their own models, {average:g} at the average.",
        ),
        Slip(
            "Local gradient: it uses lambda_(i,t), which the client computes after training.",
            "lambda_(t-1), as in the algorithm's box.",
            f"A batch with gap -0.5 and dual 0.7: rows weigh {right[0]:.2f} and {right[1]:.2f}; with the later dual "
            f"{moved_dual():.1f} they would weigh {wrong[0]:.2f} and {wrong[1]:.2f}, ascending on group 0.",
        ),
        Slip(
            "Strong concavity: the augmented Lagrangian is linear in lambda, so rho = 0 and R is infinite wherever the "
            "groups' losses differ.",
            "Bound the dual, or subtract rho/2 lambda^2; then R(w) = L + (beta/2 + 1/(2 rho)) gap^2.",
            f"The same batch, over duals up to 1, 10, 100: {linear}; with rho = 1: {largest_lagrangian(100, 1):.3f}.",
        ),
    ]


def _lemma_slips() -> list[Slip]:
    left, right = common_dual()
    step, model = 1e-4, 2.0
    measured, printed = drift(5, step, model)
    factors = [bound.contraction(PAPER, 10_000, steps) for steps in (1, 2, 5)]
    zero, negative = own_maximiser()
    return [
        Slip(
            "PL lemma, third inequality: it needs every client's own best dual and takes the common one. Its first "
            "step is the dissimilarity assumption, not Jensen; its second is PL, not smoothness.",
            "min F_i(., l) <= min max F_i = F_i* for whatever dual l: the lemma's end stands, with Gamma as defined.",
            f"A pair of clients for which the printed step asks for {left:.0f} <= {right:.3f}. In the example the "
            f"common dual would make Gamma {two_clients.gamma_of_the_common_dual():.3f}; it is "
            f"{two_clients.gamma():.3f}.",
        ),
        Slip(
            "Drift lemma: one gradient of R is set against the sum of E local ones, and Jensen loses its factors.",
            "E grad R against the sum, at most E^2 L^2 (l* - l)^2 + eta^2 L^2 E^2 (E-1)(2E-1)/6 (B_w^2 + G^2): E eta "
            "is the step. For E = 1 there is no drift.",
            f"The example at w = 2 with E = 5 and steps of {step:g}: {measured:.2f} on the left, {printed:.4f} on the "
            "right.",
        ),
        Slip(
            "nu_t = 2 L^2 eta_w / (rho eta_l) makes k_2 = 1 - (2 - E) rho eta_l / 4.",
            "nu_t needs a factor E; then k_2 = 1 - rho eta_l / 4 for every E.",
            f"k_2 at round 10000 of the example: {factors[0]:.4f} for E = 1, {factors[1]:.4f} for E = 2, "
            f"{factors[2]:.4f} for E = 5, where the error would grow.",
        ),
        Slip(
            "Dual lemma, fifth inequality: it takes the best dual of F for the best dual of every F_i.",
            "Keep the mean gradient together: the inequality holds for F itself, at the received model. Measuring at "
            "the trained models adds a term that vanishes faster.",
            f"The example at the best dual: the printed step asks for {zero:g} <= {negative:.2f}.",
        ),
        Slip(
            "Descent lemma: stated with kappa^2 eta_w / (2 beta^2), proved with kappa^2 eta_w / beta^2.",
            "The first is right: half of eta_w times the kappa^2 / beta^2 of the PL lemma.",
            f"In the limit {PAPER.dissimilarity / PAPER.pl:.1f} against {2 * PAPER.dissimilarity / PAPER.pl:.1f}.",
        ),
    ]


def _theorem_slips() -> list[Slip]:
    ratios = term_ratios()
    per_gamma = bound.remainder(PAPER, 10_000)["heterogeneity"] / -PAPER.heterogeneity
    tight = two_clients.best_constants()
    best, other = two_clients.saddles()
    ends = [bound.printed_bound(PAPER, 10**power) for power in (12, 15, 18)]
    early = ", ".join(f"{round(number ** (2 / 3) - 4)} at t = {number}" for number in (1, 8))
    rest = " and ".join(f"from {low:.2f} to {high:.2f}" for low, high in clipped_rest())
    return [
        Slip(
            "The theorem says O(T^(-2/3)); the last line of its proof keeps kappa^2/mu - Gamma/2.",
            "O(T^(-2/3)) + kappa^2/mu - 2 Gamma; without those two terms where R itself has the PL property.",
            f"The printed bound for the example after 10^12, 10^15, 10^18 rounds: {ends[0]:.1f}, {ends[1]:.1f}, "
            f"{ends[2]:.1f}. The saddles are {other.value - best.value:.4f} apart.",
        ),
        Slip(
            "Gamma enters the bound with -1/2.",
            "With -2: t (mu/beta^2) (2 beta^2/(mu t)) Gamma = 2 Gamma.",
            f"t times the lemma's term is {per_gamma:.2f} times -Gamma in the example. Its floor becomes "
            f"{bound.floor(PAPER):.1f} instead of {bound.printed_floor(PAPER):.1f}; with the best possible constants "
            f"it is {bound.floor(tight):.1f}.",
        ),
        Slip(
            "Constants of the last lines: B_lambda^2 and B_w^2 + G^2 are dropped, two factors of 8 became 4, and a sum "
            "of 1/t^2 over T rounds, divided by T, became 1/T^2.",
            "2 L^4 E beta^6 (B_w^2 + G^2) / (rho^2 mu^3 t^(2/3)), 16 (1 + epsilon) beta^2 L^2 B_lambda^2 / "
            "(mu rho^2 t^(2/3)), which is 8 beta^2 L^2 B_lambda^2 / (mu rho^2) times 1/t^(2/3) + 1/(t^(2/3) - 4), and "
            "a drift term in 1/T.",
            "By the lemmas over as printed, with noise of size 1 at round 10^6: "
            + ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items())
            + ".",
        ),
        Slip(
            "The induction starts at t = 0, where eta_w = 2 beta^2/(mu t) is undefined, and divides by t^(2/3) - 4.",
            "Start at the first round at which every condition on the steps holds, and carry (t_0 - 1)/T of the "
            "potential there.",
            f"t^(2/3) - 4 is {early}. For the example t_0 = {bound.first_round(PAPER)}.",
        ),
        Slip(
            "Conditions: eta_w <= 1/(L + L^2/rho) and eta_l >= 2 mu eta_w/(rho beta^2) fail in the first rounds.",
            "Cap the model's step, as this package's runs do.",
            f"In the example they hold from round {PAPER.first_lawful_round} and {PAPER.first_fast_dual_round} on; "
            f"with the best possible constants from {tight.first_lawful_round} and {tight.first_fast_dual_round}.",
        ),
        Slip(
            "Gradient clipping is said to give the bounded-dissimilarity assumption.",
            "It gives the bounded-gradient assumption. Clipped gradients also move the point of rest.",
            f"With slopes clipped to 1 every model of the example {rest} is at rest.",
        ),
    ]
