"""The theorem's rate, measured: which power of the number of rounds the gap really follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ffalm.report.artifact import Artifact, write
from ffalm.report.tables import Column, Row, Section, Table, row
from ffalm.theory import bound
from ffalm.theory.charts import rate_chart
from ffalm.theory.convergence import LEVELS, ROUNDS, SEEDS, Curve, descend, slope
from ffalm.theory.problem import CLIENTS

#: What the theorem promises of the gap.
PROMISED = -2 / 3

#: Local steps of the run that the printed proof does not cover.
SEVERAL = 4


def curves(rounds: int = ROUNDS, seeds: int = SEEDS) -> list[Curve]:
    """Every level with one local step, as the proof needs, and the harshest with several."""
    return [*descend(LEVELS, rounds, seeds), *descend(LEVELS[-1:], rounds, seeds, local_steps=SEVERAL)]


def curve_row(curve: Curve) -> Row:
    """One line of the table."""
    constants = curve.constants
    return row(
        f"{curve.problem.level:g}",
        str(curve.local_steps),
        f"{constants.dissimilarity:.2f}",
        f"{round(constants.heterogeneity, 2) + 0.0:.2f}",  # never "-0.00", which equal clients give on some machines
        f"{bound.floor(constants):.1f}",
        f"{curve.gaps[:, -1].mean():.1e}",
        str(slope(curve.rounds, curve.gaps)),
        str(slope(curve.rounds, curve.dual_errors)),
        str(slope(curve.rounds, curve.potentials)),
    )


def write_rate(folder: Path, rounds: int = ROUNDS, seeds: int = SEEDS) -> Artifact:
    """Compute the curves, about half a minute on one core, and write them."""
    found = curves(rounds, seeds)
    first = ("heterogeneity", "E", "kappa^2", "Gamma", "bound as T grows", f"gap at T = {rounds}")
    heads = (*first, "power of T: gap", "squared dual error", "potential")
    table = Table(
        "The rate of federated descent, measured",
        [Column(head) for head in heads],
        [Section([curve_row(curve) for curve in found])],
    )
    artifact = Artifact("rate", table.title, [table], _notes(found, seeds), values=table.records())
    return write(artifact, folder, chart=rate_chart(found), about=table.title)


def _notes(found: Sequence[Curve], seeds: int) -> list[str]:
    caps = [curve.constants.largest_step for curve in found]
    slopes = [slope(curve.rounds, curve.gaps) for curve in found]
    errors = [slope(curve.rounds, curve.dual_errors).value for curve in found]
    reached = "kept" if all(each.low <= PROMISED for each in slopes) else "not kept"
    faster = "and exceeded" if all(each.high < PROMISED for each in slopes) else "but not clearly exceeded"
    property_of_risk = min(curve.problem.primal_pl() for curve in found)
    return [
        f"{CLIENTS} clients, a nonconvex model risk with the PL property, a strongly concave dual; noise in every "
        f"gradient; {seeds} seeds, shared by the levels; 95 % intervals from a bootstrap over seeds; powers fitted "
        "over the last factor of 30 in T.",
        f"The promised power of -2/3 is {reached} {faster}: the gap falls with powers from "
        f"{min(each.value for each in slopes):.2f} to {max(each.value for each in slopes):.2f}, where plain stochastic "
        f"descent would have -1. The dual's squared error has {min(errors):.2f} to {max(errors):.2f}, and the proof "
        "charges all of it to the gap; but the dual's noise has mean 0, and the model, which moves more slowly, "
        "averages it out.",
        "The part of the bound that does not vanish is not seen in any run: here the primal risk itself has the PL "
        f"property (constant at least {property_of_risk:.2f}), and then the proof goes through without that part.",
        f"Steps are 2 beta^2/(mu t), at most 1/(L + L^2/rho) as the proof needs ({min(caps):.3f} to {max(caps):.3f}), "
        f"shared among the local steps; dual steps min(1/L, 4/(rho t^(2/3))). E = {SEVERAL} is outside the printed "
        "proof.",
    ]
